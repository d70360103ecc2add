"""Where the keys of a metadata store lie in ZooKeeper: names of nodes, and nothing else.

A node of ZooKeeper is a value and a folder at once; a key of ours is a value, and the folders above
it are no keys. So both get names of their own: `/ledgers/17` lies at `<chroot>/ledgers+/17`.

Invariants:
- A folder's name ends with `+`, a counter's with `#`, the store's own with `!`. A key's last part
  that ends with one of these, or with `=`, or is ZooKeeper's own `zookeeper`, has one more `=`.
- So two different keys, folders or counters never meet in one node, and a name says what it is.
"""

from typing import Final

from engine.metadata.tree import check_key

FOLDER: Final = "+"
COUNTER: Final = "#"
OWN: Final = "!"
ESCAPE: Final = "="
_ENDINGS: Final = (FOLDER, COUNTER, OWN, ESCAPE)
_RESERVED: Final = "zookeeper"


class Layout:
    """The nodes under one chroot.

    >>> layout = Layout("/prod")
    >>> layout.key("/ledgers/17")
    '/prod/ledgers+/17'
    >>> layout.folder("/ledgers"), layout.counter("/ids/ledger")
    ('/prod/ledgers+', '/prod/ids+/ledger#')
    >>> layout.names(["17", "x+", "last#", "odd+="])
    ['17', 'odd+']
    """

    def __init__(self, chroot: str) -> None:
        self.chroot = chroot.rstrip("/") or "/"
        if self.chroot != "/":
            check_key(self.chroot)
        self._prefix = "" if self.chroot == "/" else self.chroot
        self.cluster = f"{self._prefix}/cluster{OWN}"
        self.clock = f"{self._prefix}/clock{OWN}"

    def key(self, key: str) -> str:
        """The node of a key. Raises `InvalidRequest`."""
        check_key(key)
        *folders, name = key[1:].split("/")
        escaped = name.endswith(_ENDINGS) or name == _RESERVED
        return self._join(folders, name + ESCAPE if escaped else name)

    def counter(self, counter: str) -> str:
        """The node of a counter. Raises `InvalidRequest`."""
        check_key(counter)
        *folders, name = counter[1:].split("/")
        return self._join(folders, name + COUNTER)

    def folder(self, prefix: str) -> str:
        """The node that has the names directly under `prefix`. Raises `InvalidRequest`."""
        if not prefix.rstrip("/"):
            return self.chroot
        check_key(prefix.rstrip("/"))
        *folders, name = prefix.strip("/").split("/")
        return self._join(folders, name + FOLDER)

    def names(self, children: list[str]) -> list[str]:
        """The keys' own names among a node's children, sorted."""
        found = []
        for child in children:
            if child.endswith(ESCAPE):
                found.append(child[: -len(ESCAPE)])
            elif not child.endswith(_ENDINGS) and child != _RESERVED:
                found.append(child)
        return sorted(found)

    def _join(self, folders: list[str], name: str) -> str:
        return "/".join([self._prefix, *(folder + FOLDER for folder in folders), name])


def ancestors(path: str) -> list[str]:
    """The nodes above a path, the highest first, without the root.

    >>> ancestors("/prod/ledgers+/17")
    ['/prod', '/prod/ledgers+']
    """
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]
