"""One Lua script as it is sent to Redis: by its digest, and whole where the server does not know it yet.

What the scripts do is told in the folder beside this file.
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
    """One Lua file, with what all of them share in front of it."""

    def __init__(self, name: str) -> None:
        self.source = (_SCRIPTS / "prelude.lua").read_text() + (_SCRIPTS / f"{name}.lua").read_text()
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self,
        line: RedisConnection,
        script_keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        within_s: float | None = None,
    ) -> Any:
        """The script's reply, of its own shape. Raises redis.RedisError, or TimeoutError where none comes in time."""
        command = "EVALSHA", self.digest, len(script_keys), *script_keys, *arguments
        due = math.inf if within_s is None else time.monotonic() + within_s
        try:
            return await line.call(*command, due=due)
        except NoScriptError:
            await line.call("SCRIPT", "LOAD", self.source, due=due)
            return await line.call(*command, due=due)
