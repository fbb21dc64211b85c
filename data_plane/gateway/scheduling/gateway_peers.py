"""Exchanges backlogs between gateways through Redis: each gateway writes its backlog of every base model, with a short
expiry, and reads the others'. The commands travel in the pipelines that read replicas and their held pages anyway.

Fails open: a backlog that is missing, expired or unreadable counts as empty, as if its gateway left everything to the
others. Redis alone decides how many pages of a replica are reserved.
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
_HEARTBEAT_AGE_MAX_MS: Final = 10_000  # a gateway whose heartbeat is older than this is gone
_Report = Callable[[str], GatewayBacklog]
_Receive = Callable[[str, GatewayBacklog, list[GatewayBacklog]], None]


@dataclass(frozen=True, slots=True)
class SentBacklogs:
    """The backlogs that this gateway sent, by base model, and the number of commands that it added to the pipeline."""

    backlogs: dict[str, GatewayBacklog]
    commands: int


class GatewayPeers:
    """The other gateways, as this process knows them. A backlog counts for ``stale_ms`` after it was written."""

    def __init__(self, gateway_id: str, clock: RedisClock, *, stale_ms: int) -> None:
        self._clock = clock
        self._id = gateway_id
        self._stale_ms = stale_ms
        self._others: list[str] = []
        self._report: _Report | None = None
        self._receive: _Receive | None = None
        self._received_at = 0.0

    def connect(self, report: _Report, receive: _Receive) -> None:
        """``report`` returns this gateway's backlog of a base model. ``receive`` gets it as it was sent, with the
        others'.
        """
        self._report, self._receive = report, receive

    def add_peers_query(self, pipe: Pipeline) -> None:
        """Add the command that lists the gateways to a pipeline. ``apply_peers`` takes its reply."""
        pipe.zrangebyscore(redis_keys.GATEWAYS, self._clock.now_ms() - _HEARTBEAT_AGE_MAX_MS, "+inf")

    def apply_peers(self, reply: Sequence[bytes]) -> None:
        """Apply the list of the other gateways."""
        self._others = [name for name in (each.decode(errors="replace") for each in reply) if name != self._id]

    def add_exchange(self, pipe: Pipeline, base_models: Iterable[str]) -> SentBacklogs:
        """Add commands to a pipeline that write this gateway's backlogs and read the others'. ``apply`` takes the
        replies.
        """
        if not self._others or self._report is None:
            return SentBacklogs({base_model: GatewayBacklog() for base_model in base_models}, 0)
        backlogs = {base_model: self._report(base_model) for base_model in base_models}
        for base_model, backlog in backlogs.items():
            pipe.set(redis_keys.gateway_backlog(self._id, base_model), _encoder.encode(backlog), px=self._stale_ms)
            pipe.mget([redis_keys.gateway_backlog(other, base_model) for other in self._others])
        return SentBacklogs(backlogs, 2 * len(backlogs))

    def apply(self, sent: SentBacklogs, replies: Sequence[Any]) -> None:
        """Pass the others' backlogs on; an empty list where there are none."""
        self._received_at = asyncio.get_running_loop().time()
        of_others = replies[1::2] if sent.commands else [()] * len(sent.backlogs)
        for (base_model, own), values in zip(sent.backlogs.items(), of_others, strict=True):
            if self._receive is not None:
                self._receive(base_model, own, [backlog for value in values if value and (backlog := _read(value))])

    def expire(self, base_models: Iterable[str]) -> None:
        """Redis did not answer. After ``stale_ms`` the last backlogs have expired there, so they expire here as
        well.
        """
        if asyncio.get_running_loop().time() - self._received_at > self._stale_ms / 1000:
            for base_model in base_models:
                if self._receive is not None:
                    self._receive(base_model, GatewayBacklog(), [])


def _read(value: bytes) -> GatewayBacklog | None:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.debug("peer backlog unreadable; counting it as empty", error=str(error))
        return None
