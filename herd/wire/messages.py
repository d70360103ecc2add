"""What client and server say to each other, whichever wire it goes over.

Every message is one array of MessagePack that begins with its number; values in it are as
`herd.wire.values` has them. Unknown fields at the end of an array are ignored, so that a newer
minor version may add some.

Invariants:
- A message is decoded whole, with the types stated here, or refused.
- A call is answered once: by the answer that stands with it, or by `Failed`.
"""

from typing import Any, Final

import msgspec

from engine.access.principal import Grant, Kind, Principal, Right
from herd.errors import ValueInvalid
from herd.permits import Whose
from herd.types import ColumnType
from herd.wire.values import unpack_extension

FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 5

# How a statement is to run: bits of `mode`.
AUTOCOMMIT: Final = 1
SNAPSHOT: Final = 2
WITHOUT_ARROW: Final = 4
ONLY_ARROW: Final = 8
"""Rows come as Arrow, however they were found."""
KEEP_MODE: Final = 16
"""As the session is."""
FOLLOWER: Final = 32
"""For `Open`: the session reads what this node has, leader or not, and changes nothing."""

# What a session is in after a statement.
NO_TRANSACTION: Final = 0
IN_TRANSACTION: Final = 1
ENDED_TRANSACTION: Final = 2
"""It ended by itself, and its user has to hear of it by COMMIT or ROLLBACK."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """Arrays, in the order of the fields."""


# Calls of sessions


class Granted(msgspec.Struct, frozen=True, array_like=True):
    """A user, and what they may: kinds, names and rights."""

    user: str
    grants: tuple[tuple[Kind, str, Right], ...] = ()

    def principal(self) -> Principal:
        """Who it is. Raises `InvalidRequest` for a grant that names nothing."""
        return Principal(self.user, grants=tuple(Grant(*each) for each in self.grants))


def granted(whose: Whose) -> Granted | None:
    """A user as a message has them; None for who may do everything."""
    if whose is None or whose.admin:
        return None
    return Granted(whose.name, tuple((each.kind, each.name, each.right) for each in whose.grants))


class Open(_Message, frozen=True, array_like=True, tag=1):
    """Begin a session; answered by `Opened`. `client` names it in questions about its commits.

    With `whose`, which is for administrators and parts of the cluster, it may do no more than that
    user may.
    """

    tablespace: str
    mode: int = AUTOCOMMIT
    client: bytes = b""
    whose: Granted | None = None


class Execute(_Message, frozen=True, array_like=True, tag=2):
    """Run a statement; answered by `Rows` or `Table`."""

    session: int
    mode: int
    text: str
    parameters: list[Any] | dict[str, Any] = []


class ExecuteMany(_Message, frozen=True, array_like=True, tag=3):
    """Run a statement for each row of parameters; answered by `Rows`."""

    session: int
    mode: int
    text: str
    rows: list[list[Any]]


class Begin(_Message, frozen=True, array_like=True, tag=4):
    """Begin a transaction; answered by `Done`."""

    session: int
    mode: int


class Commit(_Message, frozen=True, array_like=True, tag=5):
    """Commit; answered by `Done`. `sequence` grows: `Outcome` asks by it."""

    session: int
    sequence: int = 0


class Rollback(_Message, frozen=True, array_like=True, tag=6):
    """Roll back; answered by `Done`."""

    session: int


class Close(_Message, frozen=True, array_like=True, tag=7):
    """End a session; answered by `Done`, also if it is not known."""

    session: int


class Renew(_Message, frozen=True, array_like=True, tag=8):
    """Hold the lease; answered by `Done`."""


class Fetch(_Message, frozen=True, array_like=True, tag=9):
    """The next piece of a result; answered by `Piece`. `drop`: no more of it is wanted."""

    result: int
    drop: bool = False


class Outcome(_Message, frozen=True, array_like=True, tag=10):
    """What became of a commit whose answer got lost; answered by `Told` with true or false."""

    tablespace: str
    client: bytes
    sequence: int


class ReadToken(_Message, frozen=True, array_like=True, tag=11):
    """A token for bookies, to read what the caller may; answered by `Told` with its text.

    `lifetime_ms` 0: as long as is usual.
    """

    lifetime_ms: int = 0


# Calls of tables: keys and values


class Describe(_Message, frozen=True, array_like=True, tag=20):
    """What a table is like; answered by `Described`."""

    tablespace: str
    table: str


class Get(_Message, frozen=True, array_like=True, tag=21):
    """Rows by their keys; answered by `Told` with a row or nil for each.

    `plain`: rows as arrays, in the order of the columns. `session`: within its transaction, which
    `locks` them, also keys that have no row. `also`: another table and a key of it, whose row comes
    last, of the same moment or a later one; not within a transaction. Older servers leave it out.
    """

    tablespace: str
    table: str
    keys: list[Any]
    plain: bool = False
    session: int = 0
    locks: bool = False
    also: tuple[str, Any] | None = None


class Put(_Message, frozen=True, array_like=True, tag=22):
    """Store rows, all or none; answered by `Told` with how many."""

    tablespace: str
    table: str
    rows: list[dict[str, Any]]
    replace: bool = True
    session: int = 0


class Update(_Message, frozen=True, array_like=True, tag=23):
    """Change a row; answered by `Told`: true, false for no such row.

    With `expected` the row as it is, if it is another one, and then nothing is changed.
    """

    tablespace: str
    table: str
    key: Any
    changes: dict[str, Any]
    expected: dict[str, Any] | None = None
    session: int = 0


class Delete(_Message, frozen=True, array_like=True, tag=24):
    """Remove a row; answered by `Told`: whether it was there."""

    tablespace: str
    table: str
    key: Any
    session: int = 0


class Scan(_Message, frozen=True, array_like=True, tag=25):
    """A page of rows in the order of their keys; answered by `Page`.

    `first`, `last`, `prefix` are empty, or hold one value; `after` is what the page before said.
    """

    tablespace: str
    table: str
    first: list[Any] = []
    last: list[Any] = []
    prefix: list[Any] = []
    after: bytes = b""
    count: int = 100


class MakeTable(_Message, frozen=True, array_like=True, tag=26):
    """Make a table; answered by `Done`."""

    tablespace: str
    table: str
    columns: list[tuple[str, ColumnType]]
    primary: list[str]


# Calls of tablespaces


class Names(_Message, frozen=True, array_like=True, tag=30):
    """The tablespaces; answered by `Told` with their names."""


class Make(_Message, frozen=True, array_like=True, tag=31):
    """Make a tablespace, if it is not there; answered by `Done`."""

    tablespace: str


class BackUp(_Message, frozen=True, array_like=True, tag=32):
    """Write a tablespace into a file of the server's; answered by `Done`."""

    tablespace: str
    path: str


class Restore(_Message, frozen=True, array_like=True, tag=33):
    """Make a tablespace of a backup; answered by `Done`."""

    tablespace: str
    path: str


class RestoreUntil(_Message, frozen=True, array_like=True, tag=34):
    """Make a tablespace of another as it was at a position of its log; answered by `Done`."""

    tablespace: str
    source: str
    ledger: int
    entry: int


SessionCall = Execute | ExecuteMany | Begin | Commit | Rollback
TableCall = Describe | Get | Put | Update | Delete | Scan | MakeTable
SpaceCall = Names | Make | BackUp | Restore | RestoreUntil | ReadToken
Call = SessionCall | Open | Close | Renew | Fetch | Outcome | TableCall | SpaceCall


# Answers


class Failed(_Message, frozen=True, array_like=True, tag=1):
    """What went wrong. `name` is the class in `herd.errors`, `code` its SQLSTATE.

    `leader` is the address to ask instead, where that is known; `lost`: the session is not known
    here any more, and its transaction with it.
    """

    name: str
    code: str
    message: str
    hint: str = ""
    place: int | None = None
    retryable: bool = False
    leader: str = ""
    lost: bool = False
    state: int = NO_TRANSACTION


class Done(_Message, frozen=True, array_like=True, tag=2):
    """It was done."""

    state: int = NO_TRANSACTION


class Opened(_Message, frozen=True, array_like=True, tag=3):
    """A session's number, and how often at least its client has to be heard."""

    session: int
    lease_ms: int


class Rows(_Message, frozen=True, array_like=True, tag=4):
    """The end of a statement. `columns`: an array of pairs, name and type or nil, as bytes.

    `mode` is the session's after it, as bits; `position` what a follower read: ledger and entry.
    """

    state: int
    mode: int
    kind: str
    count: int
    last_id: int | None = None
    columns: bytes = b""
    rows: list[tuple[Any, ...]] = []
    position: tuple[int, int] | None = None


class Table(_Message, frozen=True, array_like=True, tag=5):
    """The same, with rows as Arrow: `data` is a whole IPC stream of the first ones.

    `result` names the rest for `Fetch`, 0: that was all.
    """

    state: int
    mode: int
    kind: str
    count: int
    columns: bytes
    data: bytes
    result: int = 0
    position: tuple[int, int] | None = None


class Piece(_Message, frozen=True, array_like=True, tag=6):
    """More rows of a result, a whole IPC stream; `more`: there are others."""

    data: bytes
    more: bool = False


class Described(_Message, frozen=True, array_like=True, tag=7):
    """A table: its name, columns (name, type, may be NULL) and the names of the key's columns."""

    name: str
    columns: list[tuple[str, ColumnType, bool]]
    primary: list[str]


class Told(_Message, frozen=True, array_like=True, tag=8):
    """One value."""

    value: Any = None


class Page(_Message, frozen=True, array_like=True, tag=9):
    """Rows; `after` goes on behind them, nothing: there are no others."""

    rows: list[dict[str, Any]]
    after: bytes = b""


Answer = Failed | Done | Opened | Rows | Table | Piece | Described | Told | Page

_encode: Final = msgspec.msgpack.Encoder().encode
decode_call: Final = msgspec.msgpack.Decoder(Call, ext_hook=unpack_extension).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer, ext_hook=unpack_extension).decode
Columns = list[tuple[str, ColumnType | None]]
decode_columns: Final = msgspec.msgpack.Decoder(Columns).decode
MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)
"""What decoding raises."""


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises `ValueInvalid` for a text that is none."""
    try:
        return _encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ValueInvalid(f"a value cannot be sent: {error}") from None
