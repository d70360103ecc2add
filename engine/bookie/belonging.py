"""To which cluster a bookie's folder belongs: asked before anything is made for it.

The id of the cluster stands in the folder's identity. Beside it the file `cluster-url` holds the
url under which the cluster was last served, as text: for people, who do not know ids by heart.

Invariants:
- Nothing is decided by the url: a cluster may move, its id does not change.
- Nothing is written before a bookie of the folder serves.
"""

from typing import Final, NamedTuple

from engine.bookie.folder import read_identity
from engine.ports.disk import Disk

FILE_NAME: Final = "cluster-url"
_URL_BYTES_MAX: Final = 4096


class Belonging(NamedTuple):
    """A folder's cluster; `url` is "" where it is not remembered."""

    cluster_id: str
    url: str

    def __str__(self) -> str:
        return f"cluster {self.cluster_id}" + (f" (last served at {self.url})" if self.url else "")


def belonging_of(disk: Disk) -> Belonging | None:
    """The cluster of a folder, None for a new one.

    Raises `FolderDamaged`, `FolderMismatch` and `FormatTooNew` for an identity that cannot be read.
    """
    identity = read_identity(disk)
    return None if identity is None else Belonging(identity.cluster_id, _url_in(disk))


def remember_url(disk: Disk, url: str) -> None:
    """Keep the url under which the folder's cluster is served."""
    if _url_in(disk) != url:
        disk.replace(FILE_NAME, url.encode())


def _url_in(disk: Disk) -> str:
    try:
        return disk.read(FILE_NAME, 0, _URL_BYTES_MAX).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
