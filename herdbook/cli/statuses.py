"""With which status a command ends that an error has ended."""

from engine.errors import NoSuchCluster, causes
from herdbook.finding import StoreNotFound


def status_of(error: BaseException) -> int:
    """2 where the reason is that there is no such store, a folder or a cluster; else 1."""
    missing = any(isinstance(each, StoreNotFound | NoSuchCluster) for each in causes(error))
    return 2 if missing else 1
