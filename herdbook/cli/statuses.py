"""With which status a command ends that an error has ended."""

from engine.errors import NoSuchCluster
from herdbook.finding import StoreNotFound


def status_of(error: BaseException) -> int:
    """2 where the reason is that there is no such store, a folder or a cluster; else 1."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, StoreNotFound | NoSuchCluster):
            return 2
        reason = reason.__cause__
    return 1
