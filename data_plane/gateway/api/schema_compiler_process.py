"""The child process that compiles grammars as engines do, so that a schema that never finishes kills only the child.

Frames on stdin and stdout: four bytes of length, then MessagePack. ``schema_compiler.py`` interprets the results,
and starts ``python -m data_plane.gateway.api.schema_compiler_process <memory in bytes>`` confined (``core.sandbox``).
"""

import contextlib
import os
import resource
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import msgspec

FRAME_BYTES_MAX: Final = 256 << 20  # the largest frame holds a tokenizer
_NICE: Final = 5  # streams have priority


class LoadTokenizer(msgspec.Struct, tag=True):
    """A tokenizer.json to compile for, under a name that the parent chooses."""

    name: str
    tokenizer: bytes
    eos_token: str | None
    vocab_size: int


class CompileGrammar(msgspec.Struct, tag=True):
    """A structural tag, as JSON, to compile for the tokenizer of this name. ``schemas`` are the schemas in it."""

    name: str
    source: bytes
    schemas: list[bytes]


class CompileResult(msgspec.Struct):
    """``problem`` is empty for a grammar that compiles; ``size_bytes`` is the compiled size. ``schema`` is the index of
    the first schema that does not compile alone.
    """

    problem: str = ""
    size_bytes: int = 0
    schema: int | None = None


_requests: Final = msgspec.msgpack.Decoder(LoadTokenizer | CompileGrammar)


def pack(frame: LoadTokenizer | CompileGrammar | CompileResult) -> bytes:
    """A frame with its length."""
    encoded = msgspec.msgpack.encode(frame)
    return struct.pack(">I", len(encoded)) + encoded


def main() -> None:
    """Answer until stdin ends. The process stays within its memory limit."""
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library's output must not be read as an answer
    library = _library()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # the library warns about each odd pattern, and a tenant may send many
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    compilers: dict[str, Any] = {}  # by name; xgrammar ships no types for these
    while (frame := _read(sys.stdin.buffer)) is not None:
        match _requests.decode(frame):
            case LoadTokenizer(name=name) as load:
                compilers[name] = _compiler(library, load)
                result = CompileResult()
            case CompileGrammar(name=name) as wanted:
                result = _compile(compilers[name], wanted)
        answers.write(pack(result))
        answers.flush()


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack(">I", head)[0])


def _library() -> Any:  # a module
    """XGrammar without torch and transformers. It imports both for functions that are not called here, which takes tens
    of seconds and 200 MB; empty stand-ins provide the names that it needs at import.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to mark a module as missing
    with contextlib.suppress(ImportError):
        import tvm_ffi  # noqa: F401 # it tries to import torch too, and works without it
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
    from tokenizers import Tokenizer  # must come after the library's import

    tokenizer = Tokenizer.from_str(load.tokenizer.decode())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    size = max(load.vocab_size, max(vocabulary.values()) + 1)
    encoded = [""] * size
    for token, index in vocabulary.items():
        encoded[index] = token
    metadata = library.TokenizerInfo._detect_metadata_from_hf(tokenizer.to_str())  # noqa: SLF001 # as from_huggingface does
    stop = vocabulary.get(load.eos_token or "")
    info = library.TokenizerInfo(
        encoded,
        vocab_type=metadata["vocab_type"],
        vocab_size=size,
        stop_token_ids=None if stop is None else [stop],
        add_prefix_space=metadata["add_prefix_space"],
    )
    return library.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _compile(compiler: Any, wanted: CompileGrammar) -> CompileResult:
    """Compile a grammar, and only after a failure its schemas, for the message."""
    result = _compiled(compiler.compile_structural_tag, wanted.source)
    if result.problem:
        for index, schema in enumerate(wanted.schemas):
            if alone := _compiled(compiler.compile_json_schema, schema).problem:
                return CompileResult(problem=alone, schema=index)
    return result


def _compiled(compile_source: Callable[[str], Any], source: bytes) -> CompileResult:
    try:
        compiled = compile_source(source.decode())
    except Exception as error:  # noqa: BLE001 # an engine would raise the same error
        lines = str(error).strip().splitlines()
        return CompileResult(problem=(lines[0] if lines else type(error).__name__)[:500])
    return CompileResult(size_bytes=compiled.memory_size_bytes)


if __name__ == "__main__":
    main()
