"""What a metadata session says over frames: MessagePack arrays with a tag in front.

A METADATA frame carries one of the calls below and is answered by METADATA_REPLY with what `Answer`
holds, or by ERROR. WATCH and UNWATCH carry a key; the frame's request number names the watch, and
CHANGED repeats it each time the watch fires.

Invariants:
- A tag never changes its meaning.
- An answer with names holds at most `NAMES_MAX` of them, so that it always fits in a frame.
"""

from typing import Final

import msgspec

NAMES_MAX: Final = 10_000


class Get(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """`MetadataStore.get`."""

    key: str


class Create(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`MetadataStore.create`."""

    key: str
    value: bytes
    ephemeral: bool


class Set(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """`MetadataStore.set`."""

    key: str
    value: bytes
    version: int


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """`MetadataStore.delete`."""

    key: str
    version: int | None


class Children(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """`MetadataStore.children`, the names above one, at most `NAMES_MAX`."""

    prefix: str
    above: str


class NextId(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`MetadataStore.next_id`."""

    counter: str


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """`MetadataStore.sync`."""


class Page(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`MetadataStore.page`, at most `NAMES_MAX` numbers."""

    prefix: str
    above: int


class ServerTime(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """`ServerClock.server_ms`."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Answered at once, without the store: the server is alive."""


Call = Get | Create | Set | Delete | Children | NextId | Sync | Page | ServerTime | Ping


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a call returns; a field that a call does not fill is None.

    `number` is a version, an id or a time; `numbers` are those of a page; `more` says that there
    are names or numbers above the last one.
    """

    number: int | None = None
    value: bytes | None = None
    names: list[str] | None = None
    more: bool = False
    numbers: list[int] | None = None


class Watch(msgspec.Struct, frozen=True, array_like=True):
    """WATCH: tell of changes of a key, or of the set of names under it."""

    key: str
