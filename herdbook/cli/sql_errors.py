"""An error of a statement as a person reads it: what, where, and what to do.

    ERROR 42P01: there is no table cow
    LINE 2: FROM cow
                 ^
    HINT: SHOW TABLES lists them

Invariants:
- The caret stands below the place that the error names, wide letters and tabs notwithstanding.
- Whatever stands in a statement, nothing of it steers the terminal.
"""

from typing import Final

from rich.cells import cell_len

from herd.errors import Error
from herdbook.cli.sql_splitting import Piece

_SHOWN_BEFORE: Final = 60
_SHOWN_CHARACTERS_MAX: Final = 100


def shown(error: Error, piece: Piece, source: str = "") -> str:
    """The lines that tell of an error. `source` is the name of the file, "" for none."""
    place = error.place
    known = place is not None and 0 <= place <= len(piece.text)
    line = piece.line + (piece.text.count("\n", 0, place) if known else 0)
    where = f"{source}:{line}: " if source else ""
    lines = [f"{where}ERROR {error.code}: {harmless(error.message)}"]
    if known:
        assert place is not None
        lines += _caret(piece, place, line if source else line - piece.line + 1)
    if error.hint:
        lines.append(f"HINT: {harmless(error.hint)}")
    return "\n".join(lines)


def harmless(text: str, *, newlines: bool = False) -> str:
    """A text whose control characters are written out; line ends stay if `newlines`.

    >>> harmless("cow\\x1b[2J")
    'cow\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or (newlines and letter == "\n")
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def _caret(piece: Piece, place: int, number: int) -> list[str]:
    begin = piece.text.rfind("\n", 0, place) + 1
    end = piece.text.find("\n", place)
    text = piece.text[begin : end if end >= 0 else len(piece.text)]
    offset = place - begin
    head = f"LINE {number}: "
    if offset > _SHOWN_BEFORE:
        cut = offset - _SHOWN_BEFORE
        text, offset, head = text[cut:], offset - cut, f"{head}…"
    before = harmless(text[:offset].replace("\t", " "))
    after = harmless(text[offset : offset + _SHOWN_CHARACTERS_MAX].replace("\t", " "))
    more = "…" if offset + _SHOWN_CHARACTERS_MAX < len(text) else ""
    return [f"{head}{before}{after}{more}", " " * cell_len(head + before) + "^"]
