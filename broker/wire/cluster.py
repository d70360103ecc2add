"""The broker of a cluster, from afar: whoever leads by the metadata store.

Invariants:
- The leader is looked up when nobody is known to lead, and anew whenever the last one known does
  not answer or does not lead: a takeover needs nobody to be told of it.
"""

import random

from broker.connection import Hello, WorkerLink
from broker.errors import BrokerError, NotLeader
from broker.wire.leader_port import LeaderWorkerPort
from broker.wire.remote import RemoteCalls
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security

LEADERLESS_MS = 30_000
"""A takeover waits for the session of the one before to end, then reads what there is."""


class ClusterCalls(RemoteCalls):
    """`Calls` to whoever leads the broker of a cluster."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        rng: random.Random,
        *,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        leaderless_ms: int = LEADERLESS_MS,
    ) -> None:
        super().__init__(
            (), clock, rng, security=security, settings=settings, leaderless_ms=leaderless_ms
        )
        self._leaders = LeaderWorkerPort(store, security, settings)

    async def _address(self) -> str:
        if not self._at:
            self._at = await self._leaders.leader()
        return self._at

    async def _elsewhere(self, error: BrokerError) -> None:
        named = error.leader if isinstance(error, NotLeader) else ""
        self._at = named if named != self._at else ""

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `WorkerPort`."""
        return await self._leaders.connect(hello)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self._leaders.close()
