"""The url of a cluster: its nodes or its ZooKeeper servers, followed by the path of its metadata.

Invariants:
- A url says one thing only: ports that were left out are filled in, a path has no way round.
"""

import re
from typing import Final, NamedTuple

from engine.errors import InvalidRequest

SCHEME: Final = "herdbook://"
ZOOKEEPER_PORT: Final = 2181
_ZOOKEEPER_PORTS: Final = frozenset({ZOOKEEPER_PORT, 2281})
"""Clients do not look for a node at these ports."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_CHROOT: Final = re.compile(r"(/[A-Za-z0-9._-]+)*")


class ClusterUrl(NamedTuple):
    """Where a cluster's metadata is: `hosts` as "host:port,host:port", `chroot` as "/path"."""

    hosts: str
    chroot: str

    @property
    def possible_nodes(self) -> tuple[str, ...]:
        """The hosts that may be nodes: their ports are not ZooKeeper's usual ports.

        >>> parse_url("herdbook://one:7180,two/prod").possible_nodes
        ('one:7180',)
        """
        servers = self.hosts.split(",")
        return tuple(one for one in servers if int(one.rpartition(":")[2]) not in _ZOOKEEPER_PORTS)

    def __str__(self) -> str:
        return f"{SCHEME}{self.hosts}{self.chroot if self.chroot != '/' else ''}"


def parse_url(url: str) -> ClusterUrl:
    """The parts of "herdbook://host:port,host:port/chroot"; a port left out is ZooKeeper's 2181.

    Raises `InvalidRequest`.

    >>> parse_url("herdbook://one:2182,two/prod")
    ClusterUrl(hosts='one:2182,two:2181', chroot='/prod')
    """
    if not url.startswith(SCHEME):
        raise InvalidRequest(f"not the url of a cluster: {url!r}: it begins with {SCHEME}")
    servers, slash, path = url.removeprefix(SCHEME).partition("/")
    chroot = (slash + path).rstrip("/")
    hosts = []
    for server in servers.split(","):
        match = _HOST.fullmatch(server)
        port = int(match[2] or ZOOKEEPER_PORT) if match is not None else 0
        if match is None or not 0 < port < 65_536:
            raise InvalidRequest(f"{server!r} in {url!r} is not the host:port of a server")
        hosts.append(f"{match[1]}:{port}")
    names = chroot.split("/")
    if not _CHROOT.fullmatch(chroot) or "." in names or ".." in names or chroot == "/zookeeper":
        raise InvalidRequest(f"{chroot!r} in {url!r} is no path that a cluster could be under")
    return ClusterUrl(",".join(hosts), chroot or "/")
