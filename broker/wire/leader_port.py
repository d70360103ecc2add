"""Where the workers of a cluster connect: the leader that the metadata store names.

Invariants:
- Each connection begins with a look into the store: a new leader is found without being told of.
"""

from broker.connection import Hello
from broker.errors import AccessDenied, BrokerUnavailable
from broker.service import LOG
from broker.wire.grpc_port import GrpcLink, GrpcWorkerPort
from engine.errors import AccessRefused, EngineError
from engine.log.log_list import LOGS, decode_list
from engine.metadata.contract import MetadataStore
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security


class LeaderWorkerPort:
    """A `WorkerPort` to whoever leads the broker of a cluster."""

    def __init__(
        self,
        store: MetadataStore,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        name: str = LOG,
    ) -> None:
        self._store = store
        self._name = name
        self._port = GrpcWorkerPort((), security, settings)

    async def connect(self, hello: Hello) -> GrpcLink:
        """See `WorkerPort`."""
        self._port.follow(await self.leader())
        return await self._port.connect(hello)

    async def leader(self) -> str:
        """The address of the leader.

        Raises `BrokerUnavailable` if there is none, and `AccessDenied` if the caller may not ask.
        """
        try:
            found = await self._store.get(f"{LOGS}/{self._name}/list")
            address = "" if found is None else decode_list(found.value).leader_address
        except AccessRefused as error:
            raise AccessDenied(str(error)) from error
        except EngineError as error:
            raise BrokerUnavailable(f"who leads the broker is not known: {error}") from error
        if not address:
            raise BrokerUnavailable("nobody leads the broker")
        return address

    async def close(self) -> None:
        """Close all connections."""
        await self._port.close()
