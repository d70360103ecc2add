"""CREATE, ALTER and DROP TABLESPACE, in words of their own and in those of the original.

    CREATE TABLESPACE [IF NOT EXISTS] name WITH replicas = 3, nodes = 'a,b', leader = 'a', wait = 9
    ALTER TABLESPACE name SET replicas = 3, leader = 'b'
    ALTER TABLESPACE name SET replicas = DEFAULT
    ALTER TABLESPACE name ADD REPLICA 'c' | DROP REPLICA 'a' | LEADER 'b'
    DROP TABLESPACE [IF EXISTS] name
    CREATE TABLESPACE 'name','leader:a','replica:a,b','expectedreplicacount:2','wait:60000'

`replicas` is how many there should be; DEFAULT, or no `replicas` at all, means the cluster's
default; `nodes` says where; `leader` '' lets any replica lead; `wait` is how long, in milliseconds,
to wait until somebody leads, or the node that was named.

Invariants:
- A tablespace is no part of a transaction: inside one these statements are refused.
- A statement is read whole before anything is done.
- Only who may administer a tablespace of that name makes, changes or drops it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from herd.errors import NameTaken, NotSupportedError, ProgrammingError, SqlSyntaxError
from herd.sql.result import Result

if TYPE_CHECKING:
    from herd.nodes.commands import SpaceCommands
    from herd.nodes.folder_spaces import FolderSpaces
    from herd.sql.parsing import Parsed
    from herd.sql.session import Session

WORD: Final = "TABLESPACE"
_HEAD: Final = re.compile(r"(?:CREATE|ALTER|DROP)\s+TABLESPACE\b", re.IGNORECASE)
_PIECE: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|[A-Za-z0-9_.:\-]+|\S""")
_COUNTS: Final = frozenset({"replicas", "expected", "expectedreplicacount"})
_NODES: Final = frozenset({"nodes", "replica"})
_OTHERS: Final = frozenset({"leader", "wait", "maxleaderinactivitytime"})
_KNOWN: Final = ", ".join(sorted(_COUNTS | _NODES | _OTHERS))


def is_about_a_tablespace(text: str, start: int) -> bool:
    """Whether the statement that begins there is one of these."""
    return _HEAD.match(text, start) is not None


@dataclass(slots=True)
class Wanted:
    """What a statement says."""

    verb: str
    name: str = ""
    tolerant: bool = False
    """IF EXISTS, or IF NOT EXISTS."""
    expected: int | None = None
    by_default: bool = False
    """The cluster's default number of replicas."""
    nodes: list[str] | None = None
    leader: str | None = None
    wait_ms: int | None = None
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


async def run(session: "Session", words: list[str], parsed: "Parsed") -> Result:
    """Do what the statement says.

    Raises `SqlSyntaxError`, `ProgrammingError`, `NameTaken`, `NotSupportedError` where tablespaces
    are not made this way, `LeaderUnavailable` when nobody leads in the time to wait.
    """
    wanted = _Reader(parsed.text, parsed.start).read()
    if session.permits is not None:
        session.permits.need("admin", wanted.name)
    if session.transaction is not None:
        raise ProgrammingError(
            f"{wanted.verb} TABLESPACE inside a transaction", hint="COMMIT or ROLLBACK first"
        )
    commands = session.space.commands
    if commands is None:
        raise NotSupportedError(
            f"{wanted.verb} TABLESPACE: this tablespace runs alone", hint="herd.create_tablespace"
        )
    if wanted.verb == "CREATE":
        session.space.check_room()
        await _create(commands, wanted)
    elif wanted.verb == "ALTER":
        await _alter(commands, wanted)
    else:
        await _drop(session, commands, wanted)
    if wanted.wait_ms and wanted.verb != "DROP":
        await commands.until_led(wanted.name, wanted.wait_ms, wanted.leader or "")
    return Result(kind=f"{wanted.verb} TABLESPACE")


async def _create(commands: "SpaceCommands | FolderSpaces", wanted: Wanted) -> None:
    nodes = wanted.nodes or []
    how = {} if wanted.expected is None else {"expected": wanted.expected}
    if wanted.expected is None and nodes and not wanted.by_default:
        how = {"expected": len(nodes)}
    try:
        await commands.create(wanted.name, nodes=nodes, leader=wanted.leader or "", **how)
    except NameTaken:
        if not wanted.tolerant:
            raise


async def _alter(commands: "SpaceCommands | FolderSpaces", wanted: Wanted) -> None:
    name = wanted.name
    if wanted.nodes is not None:
        await commands.set_replicas(name, wanted.nodes)
    for node in wanted.added:
        await commands.add_replica(name, node)
    for node in wanted.removed:
        await commands.remove_replica(name, node)
    if wanted.expected is not None or wanted.by_default:
        await commands.set_expected(name, wanted.expected)
    if wanted.leader is not None:
        await commands.move_leader(name, wanted.leader)


async def _drop(
    session: "Session", commands: "SpaceCommands | FolderSpaces", wanted: Wanted
) -> None:
    if wanted.name == session.space.name:
        raise ProgrammingError(
            f"this connection is to tablespace {wanted.name}", hint="drop it from another one"
        )
    if wanted.tolerant and wanted.name not in await commands.spaces():
        return
    await commands.drop(wanted.name)


class _Reader:
    """Reads one statement."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._pieces: list[tuple[str, int]] = [
            (found.group(), found.start()) for found in _PIECE.finditer(text, start)
        ]
        while self._pieces and self._pieces[-1][0] == ";":
            self._pieces.pop()
        self._at = 0

    def read(self) -> Wanted:
        """What it says. Raises `SqlSyntaxError`, `NotSupportedError`, `ProgrammingError`."""
        wanted = Wanted(self._take().upper())
        self._take()
        if self._says("IF"):
            if wanted.verb == "CREATE":
                self._expect("NOT")
            self._expect("EXISTS")
            wanted.tolerant = True
        old = self._next().startswith("'") and wanted.verb != "DROP"
        wanted.name = self._value("the name of a tablespace").lower()
        if old and self._next() in (",", ""):
            self._read_old(wanted)
        elif wanted.verb != "DROP":
            self._read_options(wanted)
        if self._next():
            self._fail(f"this is not understood here: {self._next()}")
        return wanted

    def _read_old(self, wanted: Wanted) -> None:
        """'option:value', as the original writes them."""
        while self._says(","):
            place = self._place()
            option, colon, value = self._value("'option:value'").partition(":")
            if not colon:
                self._fail("an option is 'name:value'", place)
            self._set(wanted, option.strip().lower(), value.strip(), place)

    def _read_options(self, wanted: Wanted) -> None:
        if wanted.verb == "ALTER":
            if self._says("ADD"):
                self._expect("REPLICA")
                wanted.added.append(self._value("a node"))
                return
            if self._says("DROP") or self._says("REMOVE"):
                self._expect("REPLICA")
                wanted.removed.append(self._value("a node"))
                return
            if self._next().upper() == "LEADER" and self._next(1) != "=":
                self._take()
                self._says("TO")
                wanted.leader = self._value("a node")
                return
        opened = (self._says("WITH") or self._says("SET")) and self._says("(")
        if not self._next():
            return
        for _ in self._separated():
            place = self._place()
            option = self._value("an option").lower()
            self._expect("=")
            self._set(wanted, option, self._value("a value"), place)
        if opened:
            self._expect(")")

    def _separated(self) -> Iterator[None]:
        yield
        while self._says(","):
            yield

    def _set(self, wanted: Wanted, option: str, value: str, place: int) -> None:
        if option in _COUNTS:
            wanted.by_default = value.upper() == "DEFAULT"
            wanted.expected = None if wanted.by_default else self._number(value, place)
        elif option in _NODES:
            wanted.nodes = [node.strip() for node in value.split(",") if node.strip()]
            if "*" in wanted.nodes:
                raise NotSupportedError(
                    "a replica on every node", hint="replicas = n says how many", place=place
                )
        elif option == "leader":
            wanted.leader = value
        elif option == "wait":
            wanted.wait_ms = self._number(value, place)
        elif option == "maxleaderinactivitytime":
            if not self._number(value, place):
                raise NotSupportedError(
                    "a leader that nobody follows when it falls silent", place=place
                )
        else:
            raise SqlSyntaxError(
                f"a tablespace has no option {option}", hint=f"there are {_KNOWN}", place=place
            )

    def _number(self, value: str, place: int) -> int:
        if not value.isdecimal():
            raise SqlSyntaxError(f"{value!r} is no number", place=place)
        return int(value)

    def _next(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._pieces[at][0] if at < len(self._pieces) else ""

    def _place(self) -> int:
        return self._pieces[self._at][1] if self._next() else len(self._text.rstrip())

    def _take(self) -> str:
        self._at += 1
        return self._pieces[self._at - 1][0]

    def _says(self, word: str) -> bool:
        """Whether this word comes next; it is passed over then."""
        found = self._next().upper() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._says(word):
            self._fail(f"{word} is missing here")

    def _value(self, what: str) -> str:
        """A name, a number or a text, without its quotes."""
        piece = self._next()
        if not piece or (len(piece) == 1 and not piece.isalnum()):
            self._fail(f"{what} is missing here")
        self._at += 1
        if piece[0] in "'\"`":
            return piece[1:-1].replace(piece[0] * 2, piece[0])
        return piece

    def _fail(self, message: str, place: int | None = None) -> NoReturn:
        raise SqlSyntaxError(
            message,
            place=self._place() if place is None else place,
            hint="CREATE TABLESPACE name WITH replicas = 3, leader = 'node'",
        )
