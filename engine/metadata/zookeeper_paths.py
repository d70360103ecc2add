"""Where the keys of a metadata store lie in ZooKeeper: names of nodes, and nothing else.

A node of ZooKeeper is a value and a folder at once; a key of ours is a value, and the folders above
it are no keys. So both get names of their own: `/bookies/b1` lies at `<chroot>/bookies+/b1`.

ZooKeeper lists all names under a node in one reply, so a node with a million of them is slow, and
too large for many tools. Keys that are numbers under a prefix of `NUMBERED` lie in folders of
10,000: `/ledgers/123456` lies at `<chroot>/ledgers+/12!/123456`. In clusters of earlier versions
they lie directly under the prefix until `ZooKeeperStore.upgrade` has moved them.

Invariants:
- A folder's name ends with `+`, a counter's with `#`, the store's own, which folders of numbered
  keys are, with `!`. A key's last part
  that ends with one of these, or with `=`, or is ZooKeeper's own `zookeeper`, has one more `=`.
- So two different keys, folders or counters never meet in one node, and a name says what it is.
- A key only ever moves from the place of the earlier layout to that of this one. Who looks in this
  order, and finds nothing, knows that the key was absent at some moment between. A program of an
  earlier version that is still connected may make a key in its place at any time, so that place is
  looked at, too, before a key counts as absent.
"""

import enum
from typing import Final

from engine.metadata.tree import check_key, numbers_of

FOLDER: Final = "+"
COUNTER: Final = "#"
OWN: Final = "!"
ESCAPE: Final = "="
_ENDINGS: Final = (FOLDER, COUNTER, OWN, ESCAPE)
_RESERVED: Final = "zookeeper"
NUMBERED: Final = ("/ledgers", "/repair/ledgers")
FOLDER_NUMBERS: Final = 10_000


class Spread(enum.Enum):
    """Whether numbered keys lie in folders."""

    FLAT = "FLAT"
    """None does: an earlier version made the cluster, and may still be running in it."""
    MOVING = "MOVING"
    """New ones do. The others are being moved there."""
    FOLDERS = "FOLDERS"
    """All do, but for those of programs of earlier versions. It stays so."""


class Layout:
    """The nodes under one chroot.

    >>> layout = Layout("/prod")
    >>> layout.flat("/bookies/b1"), layout.inside("/ledgers/123456")
    ('/prod/bookies+/b1', '/prod/ledgers+/12!/123456')
    >>> layout.folder("/ledgers"), layout.counter("/ids/ledger")
    ('/prod/ledgers+', '/prod/ids+/ledger#')
    >>> layout.names(["17", "x+", "last#", "odd+="])
    ['17', 'odd+']
    >>> layout.spread = Spread.MOVING
    >>> layout.places("/ledgers/123456")
    ('/prod/ledgers+/123456', '/prod/ledgers+/12!/123456')
    """

    def __init__(self, chroot: str) -> None:
        self.spread = Spread.FOLDERS
        self.chroot = chroot.rstrip("/") or "/"
        if self.chroot != "/":
            check_key(self.chroot)
        self._prefix = "" if self.chroot == "/" else self.chroot
        self.cluster = f"{self._prefix}/cluster{OWN}"
        self.clock = f"{self._prefix}/clock{OWN}"

    def places(self, key: str) -> tuple[str, ...]:
        """The nodes where a key may be, in the order in which to look. Raises `InvalidRequest`."""
        check_key(key)
        flat = self.flat(key)
        if not is_numbered(key):
            return (flat,)
        inside = self.inside(key)
        return (inside, flat, inside) if self.spread is Spread.FOLDERS else (flat, inside)

    def flat(self, key: str) -> str:
        """The node of a key in the layout of earlier versions."""
        *folders, name = key[1:].split("/")
        escaped = name.endswith(_ENDINGS) or name == _RESERVED
        return self._join(folders, name + ESCAPE if escaped else name)

    def inside(self, key: str) -> str:
        """The node of a numbered key in its folder."""
        prefix, _, name = key.rpartition("/")
        return f"{self.numbered_folder(prefix, int(name) // FOLDER_NUMBERS)}/{name}"

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

    def numbered_folders(self, children: list[str]) -> list[int]:
        """The numbers of the folders of numbered keys among a node's children, ascending."""
        return sorted(numbers_of(name[:-1] for name in children if name.endswith(OWN)))

    def numbered_folder(self, prefix: str, folder: int) -> str:
        """The node of one folder of numbered keys."""
        return f"{self.folder(prefix)}/{folder}{OWN}"

    def _join(self, folders: list[str], name: str) -> str:
        return "/".join([self._prefix, *(folder + FOLDER for folder in folders), name])


def is_numbered(key: str) -> bool:
    """Whether a key has its place in a folder of numbered keys.

    >>> [is_numbered(key) for key in ("/ledgers/17", "/ledgers/017", "/ledgers/x", "/logs/17")]
    [True, False, False, False]
    """
    prefix, _, name = key.rpartition("/")
    return prefix in NUMBERED and bool(numbers_of([name]))


def ancestors(path: str) -> list[str]:
    """The nodes above a path, the highest first, without the root.

    >>> ancestors("/prod/ledgers+/17")
    ['/prod', '/prod/ledgers+']
    """
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]
