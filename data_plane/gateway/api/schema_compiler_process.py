"""The child process that compiles JSON Schemas as engines do, so that one which takes for ever ends nobody but itself.

Frames on stdin and stdout: four bytes of length, then MessagePack. What a verdict means is decided in grammars.py.
Run: ``python -m data_plane.gateway.api.schema_compiler_process <memory in bytes>``.
"""

import contextlib
import os
import resource
import signal
import struct
import sys
import types
from ctypes import CDLL
from typing import Any, BinaryIO, Final

import msgspec

FRAME_BYTES_MAX: Final = 256 << 20  # a tokenizer is the largest
_PR_SET_PDEATHSIG: Final = 1
_NICE: Final = 5  # streams come first


class LoadTokenizer(msgspec.Struct, tag=True):
    """A tokenizer.json to compile for from now on, under a name of the parent's."""

    name: str
    tokenizer: bytes
    eos_token: str | None
    vocab_size: int


class CompileSchema(msgspec.Struct, tag=True):
    """A schema, as JSON, to compile for the tokenizer of this name."""

    name: str
    schema: bytes


class CompileResult(msgspec.Struct):
    """``problem`` is empty for a schema that compiles; ``size_bytes`` is what it compiles to."""

    problem: str = ""
    size_bytes: int = 0


_requests: Final = msgspec.msgpack.Decoder(LoadTokenizer | CompileSchema)


def pack(frame: LoadTokenizer | CompileSchema | CompileResult) -> bytes:
    """A frame with its length."""
    encoded = msgspec.msgpack.encode(frame)
    return struct.pack(">I", len(encoded)) + encoded


def main() -> None:
    """Answer until stdin ends. Dies with its parent, and has no more memory than it was given."""
    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints must not be taken for an answer
    library = _library()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # it warns about each odd pattern, which a tenant may send as often as it likes
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    compilers: dict[str, Any] = {}  # by name; xgrammar ships no types for these
    while (frame := _read(sys.stdin.buffer)) is not None:
        match _requests.decode(frame):
            case LoadTokenizer(name=name) as load:
                compilers[name] = _compiler(library, load)
                verdict = CompileResult()
            case CompileSchema(name=name, schema=schema):
                verdict = _compile(compilers[name], schema)
        answers.write(pack(verdict))
        answers.flush()


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack(">I", head)[0])


def _library() -> Any:  # a module
    """XGrammar without torch and transformers, which it imports for functions that are not called here and which take
    tens of seconds and 200 MB; what it names of them at import stands here empty.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say that there is none
    with contextlib.suppress(ImportError):
        import tvm_ffi  # noqa: F401 # it looks for torch too, and does without where there is none
    for name in ("torch", "transformers"):
        sys.modules[name] = _Absent(name)
    import xgrammar

    return xgrammar


class _Absent(types.ModuleType):
    """A module whose every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda _self, *_, **__: None})


def _compiler(library: Any, load: LoadTokenizer) -> Any:  # neither has types
    from tokenizers import Tokenizer  # the library's import must come first, and this is no part of it

    tokenizer = Tokenizer.from_str(load.tokenizer.decode())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    size = max(load.vocab_size, max(vocabulary.values()) + 1)
    encoded = [""] * size
    for token, index in vocabulary.items():
        encoded[index] = token
    metadata = library.TokenizerInfo._detect_metadata_from_hf(tokenizer.to_str())  # noqa: SLF001 # as from_huggingface does it
    stop = vocabulary.get(load.eos_token or "")
    info = library.TokenizerInfo(
        encoded,
        vocab_type=metadata["vocab_type"],
        vocab_size=size,
        stop_token_ids=None if stop is None else [stop],
        add_prefix_space=metadata["add_prefix_space"],
    )
    return library.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _compile(compiler: Any, schema: bytes) -> CompileResult:
    try:
        compiled = compiler.compile_json_schema(schema.decode())
    except Exception as error:  # noqa: BLE001 # whatever it is, an engine would meet it as well
        said = str(error).strip().splitlines()
        return CompileResult(problem=(said[0] if said else type(error).__name__)[:500])
    return CompileResult(size_bytes=compiled.memory_size_bytes)


if __name__ == "__main__":
    main()
