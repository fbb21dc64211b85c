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
from data_plane.gateway.scheduling.fair_share import GatewayBacklog
from data_plane.gateway.state.redis_clock import RedisClock

_log = structlog.get_logger()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(GatewayBacklog)
_SEEN_MS: Final = 10_000  # a heartbeat older than this is of a gateway that is gone
_Report = Callable[[str], GatewayBacklog]
_Receive = Callable[[str, GatewayBacklog, list[GatewayBacklog]], None]


@dataclass(frozen=True, slots=True)
class SentBacklogs:
    """What this gateway told when it asked, by base model, and by how many commands."""

    told: dict[str, GatewayBacklog]
    commands: int


class GatewayPeers:
    """The other gateways, as one process hears of them. A backlog counts for ``stale_ms`` after it was written."""

    def __init__(self, gateway_id: str, clock: RedisClock, *, stale_ms: int) -> None:
        self._clock = clock
        self._id = gateway_id
        self._stale_ms = stale_ms
        self._others: list[str] = []
        self._report: _Report | None = None
        self._receive: _Receive | None = None
        self._received_at = 0.0

    def connect(self, report: _Report, receive: _Receive) -> None:
        """Let ``report`` say what this gateway has, and ``heard`` learn that, as it was told, and what others have."""
        self._report, self._receive = report, receive

    def add_peers_query(self, pipe: Pipeline) -> None:
        """Put one command into a pipeline; ``apply_peers`` takes its answer."""
        pipe.zrangebyscore(redis_keys.GATEWAYS, self._clock.now_ms() - _SEEN_MS, "+inf")

    def apply_peers(self, answer: Sequence[bytes]) -> None:
        """Which other gateways there are."""
        self._others = [name for name in (each.decode(errors="replace") for each in answer) if name != self._id]

    def add_exchange(self, pipe: Pipeline, base_models: Iterable[str]) -> SentBacklogs:
        """Put commands into a pipeline that tell what this gateway has and ask what others have, for ``hear``."""
        if not self._others or self._report is None:
            return SentBacklogs({base_model: GatewayBacklog() for base_model in base_models}, 0)
        told = {base_model: self._report(base_model) for base_model in base_models}
        for base_model, backlog in told.items():
            pipe.set(redis_keys.gateway_backlog(self._id, base_model), _encoder.encode(backlog), px=self._stale_ms)
            pipe.mget([redis_keys.gateway_backlog(other, base_model) for other in self._others])
        return SentBacklogs(told, 2 * len(told))

    def apply(self, asked: SentBacklogs, answers: Sequence[Any]) -> None:
        """Pass on what others have; nothing where there are none."""
        self._received_at = asyncio.get_running_loop().time()
        of_others = answers[1::2] if asked.commands else [()] * len(asked.told)
        for (base_model, told), values in zip(asked.told.items(), of_others, strict=True):
            if self._receive is not None:
                self._receive(base_model, told, [backlog for value in values if value and (backlog := _read(value))])

    def expire(self, base_models: Iterable[str]) -> None:
        """Redis did not answer: once what was heard last would count no more there, it counts no more here either."""
        if asyncio.get_running_loop().time() - self._received_at > self._stale_ms / 1000:
            for base_model in base_models:
                if self._receive is not None:
                    self._receive(base_model, GatewayBacklog(), [])


def _read(value: bytes) -> GatewayBacklog | None:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.debug("another gateway's backlog cannot be read; it counts as none", error=str(error))
        return None
