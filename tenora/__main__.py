"""`python -m tenora` is the `tenora` command."""

from tenora.cli import main

main()
