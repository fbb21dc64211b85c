"""Coverage-guided fuzzing of the safetensors header reader: what it accepts, the library reads as the same tensors.

``python tests/fuzz/fuzz_header.py [seconds]``, or ``make fuzz``. Starts from the corpus of bad uploads and the good
ones. Options of libFuzzer, such as ``-runs=1000 -seed=1``, may follow.
"""

import re
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["adapters.safetensors_header", "core.strict_json"]):
    from adapters.safetensors_header import HeaderBounds, read_header
from adapters.report import FileRejected
from tests.corpus.uploads.corpus import seeds
from tests.fuzz.same_tensors import assert_same_tensors

BOUNDS = HeaderBounds(tensors=64)
FILE = "adapter_model.safetensors"


def fuzz(path: Path, content: bytes) -> None:
    """Read one file. Any exception other than a complete refusal is a finding."""
    path.write_bytes(content)
    try:
        tensors = read_header(path, BOUNDS, file=FILE)
    except FileRejected as refused:
        problem = refused.problem
        assert problem.file == FILE
        assert problem.message.startswith(FILE)
        assert problem.message.isprintable()
        return
    assert_same_tensors(content, tensors)


def repaired(content: bytes) -> bytes:
    """The same header with the length that it has, and as many bytes behind it as its last offset says.

    Without this nearly every mutation dies at the length field, and none gets to the offsets.
    """
    text = content[8 : content.rfind(b"}") + 1]
    ends = [int(digits) for digits in re.findall(rb"(\d{1,4})\s*\]", text)]
    return len(text).to_bytes(8, "little") + text + bytes(max(ends, default=0))


def main() -> None:
    """Fuzz for the seconds of the first argument, or without end."""
    limit = [f"-max_total_time={sys.argv[1]}"] if len(sys.argv) > 1 and sys.argv[1].isdecimal() else []
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, content in enumerate(seeds()):
            (corpus / str(number)).write_bytes(content)
        target = Path(folder) / FILE
        found = f"-artifact_prefix={Path.cwd()}/"
        atheris.Setup(
            [sys.argv[0], str(corpus), "-max_len=4096", "-timeout=5", "-rss_limit_mb=1024", found, *limit, *options],
            lambda content: (fuzz(target, content), fuzz(target, repaired(content))),
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
