"""The console: statements and commands from lines, their results and errors for a person.

Invariants:
- A statement that fails leaves the console, and the transaction that it stands in, as they were.
- An interrupt ends the statement that runs, or forgets the one that is being written; never more.
- Results go to the output, everything else of a script to the stream for errors.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, Final, TextIO

from herd.connection import Connection, Cursor
from herd.errors import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from herdbook.cli import sql_describing as describing
from herdbook.cli.sql_copying import copy
from herdbook.cli.sql_errors import shown
from herdbook.cli.sql_output import PAGE_ROWS, Expanded, Output
from herdbook.cli.sql_splitting import Piece, Splitter, split

HELP: Final = """\
\\d NAME             describe a table or a view; \\d alone lists both
\\dt \\di [TABLE] \\dv  list tables, indexes, views
\\dn                 list tablespaces
\\c NAME             go on in another tablespace
\\copy TABLE FROM FILE.csv     add the rows of a CSV file whose first line names the columns
\\copy TABLE TO FILE.csv       write all rows of a table, or of (SELECT …), into a new file
\\i FILE             run the statements of a file
\\x [on|off|auto]    write one value a line; auto: where a table does not fit
\\timing [on|off]    say how long each statement took
\\? \\q              this help; leave
A statement ends with ; and may have many lines. Ctrl-C ends the statement, Ctrl-D the console."""
_COMMAND: Final = re.compile(r"\\(\w+|\?)\s*(.*)", re.DOTALL)
_REPEATABLE: Final = (DataError, IntegrityError, NotSupportedError, ProgrammingError)
_CONSTANT: Final = re.compile(r"'(?:[^']|'')*'|-?\d{1,30}(?:\.\d{1,30})?|NULL", re.IGNORECASE)
_INSERT: Final = re.compile(
    rf"(INSERT\s+INTO\s+[\w\"]+\s*(?:\([\w\s,\"]+\)\s*)?VALUES\s*)"
    rf"\(\s*((?:{_CONSTANT.pattern})(?:\s*,\s*(?:{_CONSTANT.pattern}))*)\s*\)",
    re.IGNORECASE,
)
_CLOSINGS: Final = {"*/": "*", "": "-"}
_DEFINING: Final = ("CREATE", "DROP", "ALTER", "ROLLBACK")

Connect = Callable[[str], Connection]


class Leave(Exception):
    """The user wants to go."""


class Console:
    """One user's statements, one after the other."""

    def __init__(
        self,
        connect: Connect,
        tablespace: str,
        output: Output,
        errors: TextIO,
        tablespaces: Callable[[], list[str]],
    ) -> None:
        """`connect` opens a connection, with autocommit, to the tablespace that it is told."""
        self._tablespaces = tablespaces
        self._connect = connect
        self.tablespace = tablespace
        self.output = output
        self.errors = errors
        self.timing = False
        self.connection = connect(tablespace)
        self.definitions_changed = True
        """Whether names may have come or gone since somebody set it to False."""
        self._broken = False

    # Running

    def run_script(self, lines: Iterable[str], source: str = "", *, keep_going: bool) -> bool:
        """Run all that lines say; at the first error stop, unless told to keep going.

        Returns whether nothing failed.
        """
        ok = True
        for piece in split(lines):
            if not self.run(piece, source):
                ok = False
                if not keep_going:
                    break
        return ok

    def run(self, piece: Piece, source: str = "") -> bool:
        """Run one piece and write what it answers; False after telling of an error."""
        begun_s = time.perf_counter()
        try:
            if piece.is_command:
                self._command(piece.text)
            else:
                self._statement(piece.text)
        except Error as error:
            self._tell(shown(error, piece, source))
            self._broken = self.connection.in_transaction and isinstance(error, OperationalError)
            return False
        except (OSError, UnicodeError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            where = f"{source}:{piece.line}: " if source else ""
            self._tell(f"{where}ERROR: {error}")
            return False
        finally:
            if self.timing:
                self.output.say(f"Time: {(time.perf_counter() - begun_s) * 1000:.1f} ms")
        return True

    def _statement(self, text: str) -> None:
        cursor = self._executed(text)
        message = cursor.statusmessage or ""
        if message.startswith(_DEFINING):
            self.definitions_changed = True
        self._broken = self._broken and self.connection.in_transaction
        if cursor.description is not None:
            columns = cursor.description
            names = [column[0] for column in columns]
            count = self.output.write(names, _pages(cursor), [column[1] for column in columns])
            self.output.say(f"({count} row{'' if count == 1 else 's'})")
            if message.startswith("SELECT"):
                return
        self.output.say(message)

    def _executed(self, text: str) -> Cursor:
        """Execute a statement; of the many INSERTs of a dump only the first one is parsed."""
        pattern = insert_pattern(text)
        if pattern is not None:
            try:
                return self.connection.execute(*pattern)
            except _REPEATABLE:
                # It changed nothing, and tells the right place if it fails as it was written.
                pass
        return self.connection.execute(text)

    def _tell(self, text: str) -> None:
        self.output.stream.flush()
        self.errors.write(f"{text}\n")
        self.errors.flush()

    # Interactive

    def interact(self, read_line: Callable[[str], str], remember: Callable[[str], None]) -> None:
        """Read lines until their end, or until the user leaves. `read_line` takes a prompt."""
        splitter = Splitter()
        while True:
            try:
                line = read_line(self.prompt(splitter))
            except KeyboardInterrupt:
                splitter.clear()
                self.output.say("")
                continue
            except EOFError:
                self.output.say("")
                return
            try:
                for piece in splitter.feed(line + "\n"):
                    remember(piece.text if piece.is_command else f"{piece.text};")
                    self.run(piece)
            except KeyboardInterrupt:
                splitter.clear()
                self._tell("cancelled")
            except Leave:
                return

    def prompt(self, splitter: Splitter) -> str:
        """What stands before a line: `*` is an open transaction, `!` one that must be given up."""
        state = ""
        if self.connection.in_transaction:
            state = "!" if self._broken else "*"
        if splitter.pending:
            sign = splitter.closing
            return f"{self.tablespace}{state}{_CLOSINGS.get(sign, sign[:1])}> "
        return f"{self.tablespace}{state}=> "

    # Commands

    def _command(self, text: str) -> None:
        found = _COMMAND.fullmatch(text)
        word, rest = (found.group(1), found.group(2).strip().rstrip(";")) if found else ("", "")
        do = self._commands().get(word)
        if do is None:
            raise ProgrammingError(f"there is no command {text.split()[0]}", hint="\\? lists them")
        do(rest)

    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "?": lambda rest: self._say_help(),
            "c": self._change_tablespace,
            "copy": lambda rest: self.output.say(copy(self.connection, rest)),
            "d": self._describe,
            "di": lambda rest: self._sheet(describing.indexes(self.connection, unquoted(rest))),
            "dn": lambda rest: self._list_tablespaces(),
            "dt": lambda rest: self._sheet(describing.tables(self.connection)),
            "dv": lambda rest: self._sheet(describing.views(self.connection)),
            "i": self._include,
            "q": self._leave,
            "timing": self._set_timing,
            "x": self._set_expanded,
        }

    def _say_help(self) -> None:
        self.output.stream.write(f"{HELP}\n")

    def _leave(self, rest: str) -> None:
        raise Leave

    def _change_tablespace(self, rest: str) -> None:
        if self.connection.in_transaction:
            raise ProgrammingError("a transaction is open", hint="COMMIT or ROLLBACK it first")
        name = unquoted(rest) or "default"
        connection = self._connect(name)
        before, self.connection, self.tablespace = self.connection, connection, name
        self.definitions_changed = True
        before.close()

    def _describe(self, rest: str) -> None:
        if rest:
            for sheet in describing.described(self.connection, unquoted(rest)):
                self._sheet(sheet)
            return
        self._sheet(describing.tables(self.connection))
        views = describing.views(self.connection)
        if views[2]:
            self._sheet(views)

    def _list_tablespaces(self) -> None:
        rows = [(name, name == self.tablespace) for name in self._tablespaces()]
        self._sheet(("tablespaces", ["name", "here"], list(rows)))

    def _sheet(self, sheet: describing.Sheet) -> None:
        title, names, rows = sheet
        self.output.say(title)
        self.output.write(names, [rows] if rows else [], [None] * len(names))
        self.output.say("")

    def _include(self, rest: str) -> None:
        name = unquoted(rest)
        with open(name, encoding="utf-8") as file:
            if not self.run_script(file, name, keep_going=False):
                raise InterfaceError(f"{name} was left at its first error")

    def _set_timing(self, rest: str) -> None:
        self.timing = _switched(rest, self.timing)
        self.output.say(f"timing is {'on' if self.timing else 'off'}")

    def _set_expanded(self, rest: str) -> None:
        if rest.lower() == "auto":
            self.output.expanded = Expanded.AUTO
        else:
            on = _switched(rest, self.output.expanded is Expanded.ON)
            self.output.expanded = Expanded.ON if on else Expanded.OFF
        self.output.say(f"one value a line: {self.output.expanded.value}")


def insert_pattern(text: str) -> tuple[str, list[Any]] | None:
    """A plain INSERT of one row as a statement with parameters, and them; else None.

    >>> insert_pattern("INSERT INTO cow VALUES (1, 'El''sa', -2.50, NULL)")
    ('INSERT INTO cow VALUES (?, ?, ?, ?)', [1, "El'sa", Decimal('-2.50'), None])
    """
    found = _INSERT.fullmatch(text)
    if found is None:
        return None
    values = [_constant(one) for one in _CONSTANT.findall(found.group(2))]
    return f"{found.group(1)}({', '.join('?' * len(values))})", values


def _constant(text: str) -> Any:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text.upper() == "NULL":
        return None
    return Decimal(text) if "." in text else int(text)


def unquoted(name: str) -> str:
    """A name or a file as a person writes it, without its quotes."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'`":
        return name[1:-1].replace(name[0] * 2, name[0])
    return name


def _switched(rest: str, now: bool) -> bool:
    word = rest.lower()
    if word not in ("", "on", "off"):
        raise ProgrammingError(f"{rest} is neither on nor off")
    return not now if not word else word == "on"


def _pages(cursor: Cursor) -> Iterator[list[tuple[Any, ...]]]:
    while page := cursor.fetchmany(PAGE_ROWS):
        yield page
