"""What the broker wants of others: where big payloads lie, and where tenants' tasks run.

`herdbook` fills these with blobs and with what users give; programs may bring their own.

Invariants:
- An id that `put` returned is enough for `get`, from any process that has the same store.
- Nobody can guess an id: who submits bytes of his own cannot name another one's.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from broker.scheduling.mapping import UserMapping
from broker.settings import Target

__all__ = ["PayloadStore", "UserMapping", "mapping_of"]


class PayloadStore(Protocol):
    """Keeps payloads and results that are too big for the log.

    What it keeps goes when no task and no schedule names it any more: see `broker.sweeping`.
    """

    async def put(self, data: bytes) -> str:
        """Keep some bytes; their id, of at most 100 ASCII characters.

        Raises `BrokerUnavailable` if they could not be stored, `AccessDenied` for who may not.
        """
        ...

    async def get(self, payload_id: str) -> bytes:
        """What was kept. Raises `PayloadMissing`, `BrokerUnavailable`, `AccessDenied`."""
        ...

    def older_than(self, age_ms: int) -> AsyncIterator[str]:
        """The ids of all that was put longer ago. Raises `BrokerUnavailable`."""
        ...

    async def delete(self, payload_ids: Sequence[str]) -> None:
        """Forget these; those that are not there, too. Raises `BrokerUnavailable`."""
        ...


def mapping_of(said: "UserMapping | Mapping[str, Target] | None") -> UserMapping | None:
    """A user's mapping, whether it is a function or a table by tenant.

    In a table the empty name stands for all who are not in it; without one they run as usual.
    """
    if not isinstance(said, Mapping):
        return said
    table = said

    def look(tenant: str, type: str, /) -> Target:
        found = table.get(tenant)
        return table.get("", Target()) if found is None else found

    return look
