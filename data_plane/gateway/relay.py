"""Relays an attempt of a request on one replica. Retrying, settling and billing are the lifecycle's."""

from dataclasses import replace

from data_plane.gateway.client import Client
from data_plane.gateway.exchange import Attempt, Relayed
from data_plane.gateway.exchange_stream import StreamExchange
from data_plane.gateway.exchange_whole import WholeExchange
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream import Upstream


class Relay:
    """Relays attempts. Raises ReplicaFailed, AdapterLoading or InvalidRequest, and only before the first byte."""

    def __init__(self, upstream: Upstream, limits: GatewaySettings) -> None:
        self._upstream = upstream
        self._limits = limits

    async def run(self, client: Client, attempt: Attempt) -> Relayed:
        """Relay one attempt to its end."""
        exchange = StreamExchange if attempt.call.stream else WholeExchange
        relaying = exchange(self._upstream, self._limits, client, attempt)
        attempt.on_open(relaying.counts)
        relayed = await relaying.run()
        return relayed if relaying.load is None else replace(relayed, load=relaying.load)
