"""What gateways tell one another in Redis: each writes its backlog of every base model, which expires soon, and reads
those of the others. It travels with what is asked of Redis anyway, while replicas and their held pages are read.

Fails open: a backlog that is missing, too old or not understood counts as none, and its gateway as one that leaves all
to the others. How many pages a replica has, Redis decides.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio.client import Pipeline

from core import redis_keys
from data_plane.gateway.scheduling.fair_share import Backlog
from data_plane.gateway.state.redis_clock import RedisClock

_log = structlog.get_logger()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Backlog)
_SEEN_MS: Final = 10_000  # a heartbeat older than this is of a gateway that is gone
_Report = Callable[[str], Backlog]
_Heard = Callable[[str, Backlog, list[Backlog]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What this gateway told when it asked, by base model, and by how many commands."""

    told: dict[str, Backlog]
    commands: int


class Neighbours:
    """The other gateways, as one process hears of them. A backlog counts for ``stale_ms`` after it was written."""

    def __init__(self, gateway_id: str, clock: RedisClock, *, stale_ms: int) -> None:
        self._clock = clock
        self._id = gateway_id
        self._stale_ms = stale_ms
        self._others: list[str] = []
        self._report: _Report | None = None
        self._heard: _Heard | None = None
        self._heard_at = 0.0

    def connect(self, report: _Report, heard: _Heard) -> None:
        """Let ``report`` say what this gateway has, and ``heard`` learn that, as it was told, and what others have."""
        self._report, self._heard = report, heard

    def ask_who(self, pipe: Pipeline) -> None:
        """Put one command into a pipeline; ``hear_who`` takes its answer."""
        pipe.zrangebyscore(redis_keys.GATEWAYS, self._clock.now_ms() - _SEEN_MS, "+inf")

    def hear_who(self, answer: Sequence[bytes]) -> None:
        """Which other gateways there are."""
        self._others = [name for name in (each.decode(errors="replace") for each in answer) if name != self._id]

    def ask(self, pipe: Pipeline, base_models: Iterable[str]) -> Asked:
        """Put commands into a pipeline that tell what this gateway has and ask what others have, for ``hear``."""
        if not self._others or self._report is None:
            return Asked({base_model: Backlog() for base_model in base_models}, 0)
        told = {base_model: self._report(base_model) for base_model in base_models}
        for base_model, backlog in told.items():
            pipe.set(redis_keys.gateway_backlog(self._id, base_model), _encoder.encode(backlog), px=self._stale_ms)
            pipe.mget([redis_keys.gateway_backlog(other, base_model) for other in self._others])
        return Asked(told, 2 * len(told))

    def hear(self, asked: Asked, answers: Sequence[Any]) -> None:
        """Pass on what others have; nothing where there are none."""
        self._heard_at = asyncio.get_running_loop().time()
        of_others = answers[1::2] if asked.commands else [()] * len(asked.told)
        for (base_model, told), values in zip(asked.told.items(), of_others, strict=True):
            if self._heard is not None:
                self._heard(base_model, told, [backlog for value in values if value and (backlog := _read(value))])

    def miss(self, base_models: Iterable[str]) -> None:
        """Redis did not answer: once what was heard last would count no more there, it counts no more here either."""
        if asyncio.get_running_loop().time() - self._heard_at > self._stale_ms / 1000:
            for base_model in base_models:
                if self._heard is not None:
                    self._heard(base_model, Backlog(), [])


def _read(value: bytes) -> Backlog | None:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.debug("another gateway's backlog cannot be read; it counts as none", error=str(error))
        return None
