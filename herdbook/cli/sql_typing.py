"""What makes typing in the console pleasant: history over sessions, names completed by Tab.

Invariants:
- Completion asks in a connection of its own: it neither waits for the user's transaction nor
  begins one in it.
- The history is the user's own file, and losing it loses nothing else.
"""

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from herd.connection import Connection
from herd.errors import Error
from herdbook.cli import sql_describing as describing
from herdbook.cli.sql_console import Console

readline: Any
try:
    readline = import_module("readline")
except ImportError:
    # A Python without it still reads lines.
    readline = None

HISTORY_LINES_MAX: Final = 2_000
_DELIMITERS: Final = " \t\n,;()=<>+-*/'\"`"
_COMMENT: Final = re.compile(r"--|\n\s*\n")
_KEYWORDS: Final = """
    ALTER AND AS ASC AUTO_INCREMENT BEGIN BETWEEN BIGINT BLOB BOOLEAN BY CASCADE CASE CAST CHECK
    CHECKPOINT COLUMN COMMIT CONFLICT CONSTRAINT CREATE CROSS DATE DECIMAL DEFAULT DELETE DESC
    DESCRIBE DISTINCT DO DOUBLE DROP ELSE END EXCEPT EXISTS EXPLAIN FALSE FOR FOREIGN FROM FULL
    GROUP HAVING ILIKE IN INDEX INNER INSERT INTEGER INTERSECT INTO IS ISOLATION JOIN JSON KEY LEFT
    LEVEL LIKE LIMIT NOT NOTHING NULL OFFSET ON OR ORDER OUTER OVER PARTITION PRIMARY REFERENCES
    RELEASE RENAME RETURNING RIGHT ROLLBACK SAVEPOINT SELECT SET SHOW SMALLINT SNAPSHOT TABLE
    TABLES TEXT THEN TIME TIMESTAMP TIMESTAMPTZ TO TRANSACTION TRUE TRUNCATE UNION UNIQUE UPDATE
    UPSERT USING UUID VALUES VARCHAR VIEW WHEN WHERE WITH
"""
KEYWORDS: Final = tuple(_KEYWORDS.split())
_COMMANDS: Final = (
    "\\?",
    "\\c",
    "\\copy",
    "\\d",
    "\\di",
    "\\dn",
    "\\dt",
    "\\dv",
    "\\i",
    "\\q",
    "\\timing",
    "\\x",
)


def history_file() -> Path:
    """Where the history is kept: below `XDG_STATE_HOME`, else `~/.local/state`."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home, "herdbook", "sql_history")


class Completion:
    """The names that may stand where a word is begun."""

    def __init__(self, console: Console, connect: Callable[[str], Connection]) -> None:
        self._console = console
        self._connect = connect
        self._names: list[str] = []
        self._found: list[str] = []

    def complete(self, word: str, state: int) -> str | None:
        """The next possible word, as readline asks for it."""
        if state == 0:
            self._found = self.words(word)
        return self._found[state] if state < len(self._found) else None

    def words(self, begun: str) -> list[str]:
        """All words that may be meant, names first."""
        if begun.startswith("\\"):
            return [word for word in _COMMANDS if word.startswith(begun)]
        _, dot, tail = begun.rpartition(".")
        before = begun[: len(begun) - len(tail)]
        found = [before + name for name in self._known() if _begins(name, tail)]
        if not dot and begun:
            lower = begun.islower()
            words = [word for word in KEYWORDS if _begins(word, begun)]
            found += [word.lower() if lower else word for word in words]
        return found

    def _known(self) -> list[str]:
        if self._console.definitions_changed:
            try:
                connection = self._connect(self._console.tablespace)
                try:
                    self._names = sorted(describing.names(connection), key=str.lower)
                finally:
                    connection.close()
                self._console.definitions_changed = False
            except Error:
                # Names are a convenience: the statement itself will say what is wrong.
                return self._names
        return self._names


class Typing:
    """The terminal's side of a console: sets readline up, and puts it back."""

    def __init__(self, console: Console, connect: Callable[[str], Connection]) -> None:
        self._file = history_file()
        if readline is None:
            return
        completion = Completion(console, connect)
        readline.set_completer(completion.complete)
        readline.set_completer_delims(_DELIMITERS)
        readline.parse_and_bind("tab: complete")
        readline.set_auto_history(False)
        readline.set_history_length(HISTORY_LINES_MAX)
        try:
            readline.read_history_file(self._file)
        except OSError:
            # There is none yet, or it cannot be read.
            pass

    def remember(self, text: str) -> None:
        """Put a statement into the history, as one line where that means the same."""
        if readline is None:
            return
        for line in one_line(text):
            last = readline.get_current_history_length()
            if not last or readline.get_history_item(last) != line:
                readline.add_history(line)

    def close(self) -> None:
        """Keep the history, for the user's eyes only."""
        if readline is None:
            return
        readline.set_completer(None)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.touch(mode=0o600)
            readline.write_history_file(self._file)
        except OSError:
            # A home that cannot be written loses the history, not the work.
            pass


def one_line(text: str) -> list[str]:
    """A statement on one line; with a comment or a quote over lines, its lines as they are."""
    lines = text.splitlines()
    if _COMMENT.search(text) or any(line.count("'") % 2 for line in lines):
        return lines
    return [" ".join(line.strip() for line in lines)]


def _begins(name: str, begun: str) -> bool:
    return name.lower().startswith(begun.lower())
