"""How gateways ask engines for JSON. A gateway compiles a grammar before an engine does, so both bound it alike."""

from typing import Final

JSON_SPACES_MAX: Final = 8
"""White space between two tokens of JSON: enough for a line of three levels, and an end to a model that writes nothing
else.
"""
