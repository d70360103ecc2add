"""The store of small facts with compare-and-set: the contract of every implementation.

Invariants (`tests/engine/metadata/store_contract.py` runs them over every implementation):
- A key is a path like `/ledgers/17`; its value is bytes of at most 1 MiB. Parents need not exist.
- Versions start at 0 and grow by one with each set; a key deleted and made again starts over.
- Writes are durable and ordered when they return; reads of one store object see its own writes.
- A write whose caller was cancelled may or may not happen. The next read of its key in the same
  session, or of the children of a key above it, decides: it returns the write, waiting for it if
  necessary, or it raises `MetadataUnavailable`, or the write never happens. Reads of other keys and
  in other sessions do not wait for it.
- After `MetadataUnavailable` a write may have happened, and may happen later: no read rules it out,
  only a later write of the key that returned. Values therefore carry a token of their writer: who
  reads its own token back has succeeded. What such a write may name is not to be deleted.
- A watch fires at least once after a change that follows it; it may fire without one. It says only
  "look again".
- An ephemeral key goes with the session that made it. A store may begin another session by itself;
  it never makes a key of the old one again, but tells those who asked (`watch_session`).
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol, runtime_checkable


class Versioned(NamedTuple):
    """A value and the version that a compare-and-set must name."""

    value: bytes
    version: int


class Page(NamedTuple):
    """Numbers, ascending, and whether there may be more above the last one."""

    numbers: list[int]
    more: bool


class MetadataStore(Protocol):
    """Small facts, linearizable writes. All methods are called on the event loop."""

    @property
    def cluster_id(self) -> str:
        """The random id given to the cluster when its store was first made."""
        ...

    async def get(self, key: str) -> Versioned | None:
        """The value, or None if the key is positively absent. Raises `MetadataUnavailable`."""
        ...

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a key; returns its version. Raises `KeyExists`, `MetadataUnavailable`."""
        ...

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version.

        Raises `VersionConflict` (also if the key is gone), `MetadataUnavailable`.
        """
        ...

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key, if `version` is given only that one. An absent key is a success.

        Raises `VersionConflict`, `MetadataUnavailable`.
        """
        ...

    async def children(self, prefix: str) -> list[str]:
        """The names directly under `prefix`, sorted: `["17", "18"]` under `/ledgers`."""
        ...

    async def page(self, prefix: str, above: int = -1) -> Page:
        """The next numbers directly under `prefix` that are greater than `above`, ascending.

        A name counts if it is a number as `str` writes it. The size of a page is the store's
        choice. Pages are no snapshot: a number that is there all the time is in one of them. An
        empty page is the last one.
        """
        ...

    async def next_id(self, counter: str) -> int:
        """A number no caller was ever given before for this counter, higher than all earlier ones
        that returned before this call began. Starts at 1. Gaps are allowed."""
        ...

    async def sync(self) -> None:
        """After it returns, reads see every write that had returned anywhere before the call."""
        ...

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the loop whenever `key`, or the set of names under it, may have
        changed. Returns a function that ends the watch."""
        ...

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` on the loop each time the session has ended without `close()`.

        Its ephemeral keys are gone, or will go. What rested on one stops, or makes it anew once
        the store answers again. Returns a function that ends the watch.
        """
        ...

    async def close(self) -> None:
        """End the session: its ephemeral keys go."""
        ...


async def pages(store: MetadataStore, prefix: str, above: int = -1) -> AsyncIterator[list[int]]:
    """All pages of the numbers under `prefix` that are greater than `above`."""
    more = True
    while more:
        numbers, more = await store.page(prefix, above)
        if numbers:
            yield numbers
            above = numbers[-1]


@runtime_checkable
class ServerClock(Protocol):
    """A store that may run on another machine and can report that machine's time."""

    async def server_ms(self) -> int | None:
        """The server's wall clock, in milliseconds; None if no other machine can be asked.

        Raises `MetadataUnavailable`.
        """
        ...
