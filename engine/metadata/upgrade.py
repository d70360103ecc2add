"""Upgrading the layout of a cluster's keys in ZooKeeper.

Invariants:
- Nothing is moved while a bookie or a process of an earlier version is known. It would not find the
  ledgers that were moved, and a bookie would delete their entries as garbage.
"""

from collections.abc import Callable

from engine.errors import Unavailable
from engine.metadata.bookies import Bookies
from engine.metadata.liveness import PROCESSES, decode_record
from engine.metadata.majors import LAYOUT_MAJOR
from engine.metadata.zookeeper import ZooKeeperStore


async def upgrade(store: ZooKeeperStore, moved: Callable[[int], None]) -> int:
    """Move the keys of an earlier layout to their places in this one; returns how many were moved.

    The cluster can be used meanwhile. `moved` is told how many have been moved so far. Call it
    again if it was interrupted.

    Raises `Unavailable` while a program of an earlier version is running, `MetadataUnavailable`.
    """
    await _refuse_earlier(store)
    return await store.upgrade(moved)


async def _refuse_earlier(store: ZooKeeperStore) -> None:
    bookies = await Bookies(store).available()
    earlier = [f"bookie {name}" for name, one in bookies.items() if one.layout < LAYOUT_MAJOR]
    for name in await store.children(PROCESSES):
        found = await store.get(f"{PROCESSES}/{name}")
        if found is not None:
            record = decode_record(found.value)
            if record.layout < LAYOUT_MAJOR and not record.ended:
                earlier.append(f"process {name}")
    if earlier:
        more = f" and {len(earlier) - 3} more" if len(earlier) > 3 else ""
        raise Unavailable(
            f"{', '.join(sorted(earlier)[:3])}{more} cannot read the new layout: upgrade all "
            "programs first, and wait a minute after the last one of an earlier version has ended"
        )
