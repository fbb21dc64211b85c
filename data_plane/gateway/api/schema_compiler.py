"""Checks whether an engine can compile a request's grammars, by compiling them first in a child process with a time
limit.

Fails closed: a request with a grammar that has no result is not served. Bounds that need no compiling are in
tool_schemas.py; grammar.py says which grammars an engine compiles.
"""

import asyncio
import contextlib
import hashlib
import math
import os
import re
import struct
import sys
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.routes import BaseModelRoute
from core.errors import AppError, InvalidRequest, TooManyRequests, Unavailable
from core.sandbox.confinement import ChildLimits, child_environment, confined_command, missing_protections
from data_plane.gateway import metrics
from data_plane.gateway.api.grammar import Grammar, grammars_of
from data_plane.gateway.api.grammar_results import GrammarResults
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.schema_compiler_process import (
    FRAME_BYTES_MAX,
    CompileGrammar,
    CompileResult,
    LoadTokenizer,
    pack,
)
from data_plane.gateway.settings import GatewaySettings

_log = structlog.get_logger()
_RESULTS: Final = msgspec.msgpack.Decoder(CompileResult)
_SOURCE: Final = re.compile(r"^\[[\d:]+\] \S+: ")  # the compiler's own source location
_TIMEOUT_COST: Final = 0.25  # of a tenant's minute, reserved before each attempt
_TIMEOUT_CACHED_S: Final = 60  # a busy machine may have been the reason
_TENANTS_MAX: Final = 10_000
_ATTEMPTS: Final = 2
_ENVIRONMENT: Final = child_environment({"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})
"""One thread, since the child may start none."""
_LIBRARIES_BYTES: Final = 8 << 30
"""Address space beyond the memory that the child bounds itself: code, and what allocators reserve."""
_OPEN_FILES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Refused:
    """``schema`` is the index of the schema that is at fault, if it is known."""

    code: str
    reason: str
    schema: int | None = None


class SchemaCompiler:
    """Results for schemas, from one child process. It starts on first use and is replaced when it hangs."""

    def __init__(self, redis: Redis, settings: GatewaySettings) -> None:
        self._redis = redis
        self._settings = settings
        self._turn = asyncio.Lock()
        self._trying: dict[bytes, asyncio.Task[_Refused | None]] = {}  # one per schema, for all callers
        self._turns: dict[str, asyncio.Lock] = {}  # per tenant, so that a tenant waits for ``_turn`` only once
        self._of_tenant: Counter[str] = Counter()
        self._child: _Child | None = None
        self._results: GrammarResults[_Refused | None] = GrammarResults(
            count_max=settings.schema_cache_max, bytes_max=settings.schema_cache_max_bytes
        )
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tenant: used share of its minute, at

    async def check(self, tenant_id: str, base: BaseModelRoute, call: Call) -> None:
        """Raises InvalidRequest for a schema that no engine can compile, TooManyRequests for too many new schemas."""
        for grammar in grammars_of(call):
            named = f"{base.id}\0{base.tokenizer_sha256}\0".encode()
            digest = hashlib.sha256(named + grammar.source).digest()
            if (known := self._results.get(digest)) is not None:
                result = known.result
            else:
                result = await asyncio.shield(self._trying.get(digest) or self._begin(tenant_id, base, digest, grammar))
            if result is not None:
                param = grammar.param if result.schema is None else grammar.schemas[result.schema][0]
                raise InvalidRequest(f"`{param}` cannot be used: {result.reason}.", code=result.code, param=param)

    async def close(self) -> None:
        """End the child and fail every waiting call."""
        trying = list(self._trying.values())
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        if self._child is not None:
            await self._child.end()

    def _begin(
        self, tenant_id: str, base: BaseModelRoute, digest: bytes, grammar: Grammar
    ) -> "asyncio.Task[_Refused | None]":
        """Start compiling a grammar. The task continues without its caller: other callers may wait for it."""
        if len(self._trying) >= self._settings.schema_waiting_max:
            raise Unavailable("Too many new schemas are being compiled.", code="overloaded", retry_after_s=1)
        refund = self._charge(tenant_id)
        task = self._trying[digest] = asyncio.create_task(self._try(tenant_id, base, digest, grammar, refund))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may have disconnected
        return task

    async def _try(
        self, tenant_id: str, base: BaseModelRoute, digest: bytes, grammar: Grammar, refund: float
    ) -> _Refused | None:
        own = self._turns.setdefault(tenant_id, asyncio.Lock())
        self._of_tenant[tenant_id] += 1
        spent = False
        try:
            async with own, self._turn:
                result = await self._in_turn(base, grammar)
            spent = result is None
            refused = self._judge(result)
            self._results.put(
                tenant_id,
                digest,
                refused,
                size_bytes=result.size_bytes if result is not None and refused is None else 0,
                valid_s=_TIMEOUT_CACHED_S if spent else math.inf,
            )
            return refused
        finally:
            if not spent:
                self._refund(tenant_id, refund)
            del self._trying[digest]
            self._of_tenant[tenant_id] -= 1
            if not self._of_tenant[tenant_id]:
                del self._of_tenant[tenant_id], self._turns[tenant_id]

    def _judge(self, result: CompileResult | None) -> _Refused | None:
        if result is None:
            return _Refused("schema_too_complex", "compiling it takes too much time or memory")
        if result.problem:
            reason = "it does not compile: " + _SOURCE.sub("", result.problem).rstrip(".")
            return _Refused("schema_invalid", reason, result.schema)
        if result.size_bytes > self._settings.schema_compiled_max_bytes:
            return _Refused("schema_too_complex", "it compiles to more than an engine keeps")
        return None

    async def _in_turn(self, base: BaseModelRoute, grammar: Grammar) -> CompileResult | None:
        """The child's result. None when the grammar takes too long or kills the child twice: another grammar may be the
        reason for one death.
        """
        schemas = [schema for _, schema in grammar.schemas]
        frame = CompileGrammar(base.tokenizer_sha256, grammar.source, schemas)
        try:
            for _ in range(_ATTEMPTS):
                child = await self._ready_child(base)
                began = time.monotonic()
                try:
                    async with asyncio.timeout(self._settings.schema_compile_s):
                        result = await child.request(frame)
                except TimeoutError:
                    break
                except (asyncio.IncompleteReadError, OSError):
                    await self._lose()
                else:
                    metrics.SCHEMA_SECONDS.observe(time.monotonic() - began)
                    return result
        except AppError:
            raise
        except BaseException:
            await self._lose()  # the child may be in the middle of an answer
            raise
        await self._lose()
        return None

    def _charge(self, tenant_id: str) -> float:
        """Reserve the cost of a schema that takes too long from the tenant's minute, which refills evenly. Returns the
        refund for a schema that does not. Raises TooManyRequests when the tenant cannot afford a normal schema.
        """
        now, share = time.monotonic(), 1 / self._settings.schemas_per_minute
        used, at = self._used.pop(tenant_id, (0.0, now))
        used = max(0.0, used - (now - at) / 60)
        spent, cost = used + share > 1, max(share, _TIMEOUT_COST)
        self._used[tenant_id] = (used if spent else used + cost, now)
        while len(self._used) > _TENANTS_MAX:
            self._used.popitem(last=False)
        if spent:
            raise TooManyRequests(
                f"At most {self._settings.schemas_per_minute} new schemas per minute are compiled. "
                "Reuse schemas that you sent before, or retry later.",
                code="schema_rate_limited",
                retry_after_s=(used + share - 1) * 60,
            )
        return cost - share

    def _refund(self, tenant_id: str, refund: float) -> None:
        if tenant_id in self._used:
            used, at = self._used[tenant_id]
            self._used[tenant_id] = max(0.0, used - refund), at

    async def _ready_child(self, base: BaseModelRoute) -> "_Child":
        """A child that has this base model's tokenizer. Raises Unavailable."""
        unavailable = Unavailable("Schemas cannot be compiled now.", code="schemas_unavailable", retry_after_s=2)
        child = self._child
        try:
            async with asyncio.timeout(self._settings.schema_start_s) as limit:
                if child is None:
                    child = self._child = await _Child.start(self._settings)
                if base.tokenizer_sha256 not in child.loaded:
                    blob = await self._redis.get(redis_keys.blob(base.tokenizer_sha256))
                    if not isinstance(blob, bytes):
                        raise unavailable  # the tokenizer is not published
                    await child.request(LoadTokenizer(base.tokenizer_sha256, blob, base.eos_token, base.vocab_size))
                    child.loaded.add(base.tokenizer_sha256)
            if limit.expired():
                raise TimeoutError  # redis-py may swallow a cancellation
        except RedisError as error:
            raise unavailable from error
        except (OSError, asyncio.IncompleteReadError) as error:  # TimeoutError is an OSError
            _log.error("schema compiler did not start", error=repr(error))
            await self._lose()
            raise unavailable from error
        return child

    async def _lose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            metrics.SCHEMA_COMPILERS_LOST.inc()
            await child.end()


class _Child:
    """The child process, and the tokenizers that it has loaded."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.loaded: set[str] = set()

    @classmethod
    async def start(cls, settings: GatewaySettings) -> "_Child":
        """A child without network, files, processes or secrets: it is native code on tenants' input. What the kernel
        cannot give is logged and counted.
        """
        pipe = asyncio.subprocess.PIPE
        memory_bytes = settings.schema_memory_bytes
        module = "data_plane.gateway.api.schema_compiler_process"
        command = confined_command(
            [sys.executable, "-I", "-B", "-m", module, str(memory_bytes)],
            packages=["data_plane"],
            writable=[Path(os.devnull)],
            limits=ChildLimits(
                memory_bytes=memory_bytes + _LIBRARIES_BYTES, cpu_s=None, file_bytes=0, open_files=_OPEN_FILES_MAX
            ),
            user_id=settings.schema_user_id,
        )
        child = cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, env=_ENVIRONMENT, cwd="/", start_new_session=True
            )
        )
        assert child._process.stderr is not None, "it was asked for"
        line = await child._process.stderr.readline()
        missing = missing_protections(line)
        for name in missing:
            metrics.SCHEMA_COMPILERS_UNPROTECTED.labels(name).inc()
        if missing:
            held = line.decode(errors="replace").strip()
            _log.warning("schema compiler not fully confined", missing=missing, held=held)
        return child

    async def request(self, frame: LoadTokenizer | CompileGrammar) -> CompileResult:
        """Send one frame and read its answer. Raises OSError or IncompleteReadError when the child has died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(pack(frame))
            await stdin.drain()
        except RuntimeError as closed:  # uvloop raises this when the other end of the pipe is closed
            raise BrokenPipeError from closed
        (size,) = struct.unpack(">I", await stdout.readexactly(4))
        return _RESULTS.decode(await stdout.readexactly(min(size, FRAME_BYTES_MAX)))

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
