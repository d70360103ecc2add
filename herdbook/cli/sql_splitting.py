"""Text cut into statements ended by `;`, and commands of the console, which begin with `\\`.

Invariants:
- A `;` inside a quote or a comment ends no statement.
- A statement is given as it was written, with the line of its source at which it begins.
- The work for a line does not grow with the lines before it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(r"""['"`;]|--|/\*""")
_COMMENT_PART: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Piece:
    """A statement without its `;`, or a command of the console."""

    text: str
    line: int
    """The line of its source at which it begins, from 1 on."""
    is_command: bool = False


class Splitter:
    """Takes lines, gives pieces as they end."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._line = 0
        self._begun_at = 1
        self._closing = ""
        """What ends the quote or the comment that is open; "" where none is."""
        self._depth = 0
        self._has_words = False

    @property
    def pending(self) -> bool:
        """Whether a statement has begun and not ended."""
        return self._has_words or bool(self._closing)

    @property
    def closing(self) -> str:
        """What would end the quote or the comment that is open; "" where none is."""
        return self._closing

    def feed(self, line: str) -> Iterator[Piece]:
        """Take one line, its end included; gives the pieces that end in it."""
        self._line += 1
        if not self.pending and line.lstrip().startswith("\\"):
            self.clear()
            yield Piece(line.strip(), self._line, is_command=True)
            return
        start = place = 0
        while place < len(line):
            place, ended = self._step(line, place)
            if ended:
                self._add(line[start : place - 1])
                piece, start = self.rest(), place
                if piece is not None:
                    yield piece
        self._add(line[start:])

    def rest(self) -> Piece | None:
        """What has begun and was not ended, and forget it."""
        piece = None
        if self.pending:
            piece = Piece("".join(self._parts).rstrip(), self._begun_at)
        self.clear()
        return piece

    def clear(self) -> None:
        """Forget what has begun."""
        self._parts.clear()
        self._closing = ""
        self._depth = 0
        self._has_words = False

    def _add(self, text: str) -> None:
        if not self._parts:
            text = text.lstrip()
            self._begun_at = self._line
        if text:
            self._parts.append(text)

    def _step(self, line: str, place: int) -> tuple[int, bool]:
        """Go on to the next place where something begins or ends; whether a statement ended."""
        if self._closing == "*/":
            return self._in_comment(line, place), False
        if self._closing:
            found = line.find(self._closing, place)
            if found < 0:
                return len(line), False
            place = found + len(self._closing)
            self._closing = ""
            return place, False
        token = _TOKEN.search(line, place)
        before = line[place : token.start()] if token else line[place:]
        self._has_words = self._has_words or bool(before.strip())
        if token is None:
            return len(line), False
        word = token.group()
        if word == "--":
            return len(line), False
        if word == ";":
            return token.end(), True
        if word == "/*":
            self._closing, self._depth = "*/", 1
        else:
            self._closing, self._has_words = word, True
        return token.end(), False

    def _in_comment(self, line: str, place: int) -> int:
        found = _COMMENT_PART.search(line, place)
        if found is None:
            return len(line)
        self._depth += 1 if found.group() == "/*" else -1
        if not self._depth:
            self._closing = ""
        return found.end()


def split(lines: Iterable[str]) -> Iterator[Piece]:
    """All pieces of some lines; the last one need not be ended.

    >>> [piece.text for piece in split(["SELECT ';' -- one; ", "; SELECT 2"])]
    ["SELECT ';' -- one;", 'SELECT 2']
    """
    splitter = Splitter()
    for line in lines:
        yield from splitter.feed(line)
    rest = splitter.rest()
    if rest is not None:
        yield rest
