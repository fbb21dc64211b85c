"""Runs one Lua script in Redis by its digest, and loads the source where the server does not have it yet.

The scripts themselves, and what each does, are in ``scripts/``.
"""

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.exceptions import NoScriptError

from data_plane.gateway.state.redis_connection import Argument, RedisConnection

_SCRIPTS: Final = Path(__file__).parent / "scripts"


class Script:
    """One Lua file, with the shared functions of ``prelude.lua`` in front of it."""

    def __init__(self, name: str) -> None:
        self.source = (_SCRIPTS / "prelude.lua").read_text() + (_SCRIPTS / f"{name}.lua").read_text()
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self,
        redis: RedisConnection,
        script_keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        within_s: float | None = None,
    ) -> Any:
        """Run the script and return its reply, whose shape the script defines. Raises redis.RedisError, or TimeoutError
        where no reply comes within ``within_s``.
        """
        command = "EVALSHA", self.digest, len(script_keys), *script_keys, *arguments
        due = math.inf if within_s is None else time.monotonic() + within_s
        try:
            return await redis.call(*command, due=due)
        except NoScriptError:
            await redis.call("SCRIPT", "LOAD", self.source, due=due)
            return await redis.call(*command, due=due)
