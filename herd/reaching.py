"""The tablespaces of a folder or of a cluster, by what names it.

Invariants:
- Those who connect to one url with the same proofs on one loop share the connection.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final

from engine.metadata.cluster_url import SCHEME
from herd.errors import InterfaceError
from herd.sharing import Sharing
from herd.store import AsyncHerd, open_folder
from herd.wire.herd import RemoteHerd

if TYPE_CHECKING:
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.transport.security import Security

_clusters: Final[Sharing[RemoteHerd]] = Sharing()


@asynccontextmanager
async def open_any(
    where: str | PathLike[str],
    *,
    bookies: int = 1,
    security: "Security | None" = None,
    zookeeper: "ZooKeeperSettings | None" = None,
) -> AsyncIterator[AsyncHerd | RemoteHerd]:
    """The tablespaces of a folder, or of the cluster that a url names, as long as the block lasts.

    `security` is what the nodes of a cluster ask for, `zookeeper` its metadata store; those who
    connect to a url with the same ones on the same loop share the connection. Raises what
    `open_folder` and `open_cluster` raise.
    """
    if not isinstance(where, str | PathLike):
        raise InterfaceError(f"{type(where).__name__} is no folder and no url")
    url = fspath(where)
    if not url.startswith(SCHEME):
        async with open_folder(where, bookies=bookies) as folder:
            yield folder
        return
    # What a cluster needs loads when one is reached.
    from engine.transport.security import NO_SECURITY
    from herd.wire.cluster import open_cluster

    shown = security if security is not None else NO_SECURITY
    name = f"{url} {hash(shown)} {hash(zookeeper)}"

    def opening() -> AbstractAsyncContextManager[RemoteHerd]:
        return open_cluster(url, security=shown, zookeeper=zookeeper)

    async with _clusters.use(name, opening) as cluster_herd:
        yield cluster_herd
