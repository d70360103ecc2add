"""Results on standard output: as tables, one value a line, as CSV, or one JSON object a row.

CSV: NULL is nothing, an empty text is `""`, bytes are base64. JSON: DECIMAL is a string, so that
it stays exact; so are dates, times and UUIDs; bytes are base64; a JSON column is JSON; NaN is null.

Invariants:
- Nothing of a value is cut off, and nothing in a value steers the terminal.
- CSV and JSON hold the rows and nothing else.
- Rows are written as they are fetched, some at a time.
"""

import base64
import enum
import io
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

import msgspec
from rich.box import ASCII2, SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from herdbook.cli.sql_errors import harmless

Page = list[tuple[Any, ...]]

PAGE_ROWS: Final = 1_000
_WIDE: Final = 1_000_000
"""Columns of a page that nobody looks at: no line of it is ever folded."""
_NARROW: Final = 4
"""A column of a table is never made narrower by the terminal than this."""
_GAP: Final = 3
_PRETTY_ROWS_MAX: Final = 200
_QUOTED: Final = frozenset(',"\r\n')
_NUMBERS: Final = (int, float)


class Form(enum.Enum):
    """How results are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Expanded(enum.Enum):
    """Whether a table is written one value a line; AUTO: where its columns do not fit."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class Output:
    """Writes results to a stream."""

    def __init__(self, stream: TextIO, form: Form = Form.TABLE) -> None:
        self.stream = stream
        self.form = form
        self.expanded = Expanded.AUTO
        self.is_terminal = stream.isatty()

    def say(self, text: str) -> None:
        """A line for people: nothing where the rows alone are asked for."""
        if self.form is Form.TABLE and text:
            self.stream.write(f"{text}\n")

    def write(self, names: list[str], pages: Iterable[Page], kinds: Sequence[Any]) -> int:
        """Write all rows; returns how many there are. `kinds` are the columns' type codes."""
        count = 0

        def counted() -> Iterator[Page]:
            nonlocal count
            for page in pages:
                count += len(page)
                yield page

        if self.form is Form.CSV:
            self._csv(names, counted())
        elif self.form is Form.JSON:
            self._json(names, counted(), kinds)
        else:
            width = shutil.get_terminal_size().columns if self.is_terminal else _WIDE
            fits = sum(max(len(name), _NARROW) + 3 for name in names) <= width
            if self.expanded is Expanded.ON or (self.expanded is Expanded.AUTO and not fits):
                self._lines(names, counted())
            else:
                self._table(names, counted(), width)
        self.stream.flush()
        return count

    def _csv(self, names: list[str], pages: Iterable[Page]) -> None:
        self.stream.write(",".join(map(csv_field, names)) + "\n")
        for page in pages:
            self.stream.write("".join(",".join(map(csv_field, row)) + "\n" for row in page))

    def _json(self, names: list[str], pages: Iterable[Page], kinds: Sequence[Any]) -> None:
        keys = different(names)
        nested = [place for place, kind in enumerate(kinds) if kind == "JSON"]
        for page in pages:
            for row in page:
                values = dict(zip(keys, row, strict=True))
                for place in nested:
                    values[keys[place]] = raw_json(row[place])
                self.stream.write(msgspec.json.encode(values, enc_hook=str).decode() + "\n")

    def _lines(self, names: list[str], pages: Iterable[Page]) -> None:
        labels = [harmless(name) for name in names]
        longest = max(map(len, labels), default=0)
        below = "\n" + " " * longest + " | "
        number = 0
        for page in pages:
            for row in page:
                number += 1
                self.stream.write(f"-[ row {number} ]".ljust(longest + 12, "-") + "\n")
                for label, value in zip(labels, row, strict=True):
                    text = "NULL" if value is None else shown_value(value)
                    text = text.replace("\n", below)
                    self.stream.write(f"{label.ljust(longest)} | {text}\n")

    def _table(self, names: list[str], pages: Iterable[Page], width: int) -> None:
        console = Console(file=self.stream, width=width, highlight=False, markup=False, emoji=False)
        box = SIMPLE_HEAD if _takes_lines(self.stream) else ASCII2
        written = False
        for page in pages:
            quick = len(page) > _PRETTY_ROWS_MAX or not self.is_terminal
            lines = _quick_table(names, page, width, box.head_row_horizontal) if quick else None
            if lines is None:
                console.print(_table_of(names, page, box), crop=False)
            else:
                self.stream.write("\n".join(lines) + "\n")
            written = True
        if not written:
            console.print(_table_of(names, [], box), crop=False)


def _quick_table(names: list[str], page: Page, width: int, ruler: str) -> list[str] | None:
    """The lines of a table whose values have one line each and fit; else None.

    A page that somebody only scrolls past is worth no more time than this.
    """
    columns = []
    total = -_GAP
    for name, values in zip(names, zip(*page, strict=True), strict=True):
        texts = ["NULL" if value is None else shown_value(value) for value in values]
        head = harmless(name)
        widest = max(cell_len(head), max(map(cell_len, texts)))
        total += widest + _GAP
        if total > width or any("\n" in text for text in texts):
            return None
        right = all(map(_is_number, values))
        columns.append([_padded(text, widest, right) for text in (head, *texts)])
    head, *rows = [(" " * _GAP).join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return [head, ruler * total, *rows]


def _padded(text: str, width: int, right: bool) -> str:
    if text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _table_of(names: list[str], page: Page, box: Box) -> Table:
    table = Table(box=box, show_edge=False, pad_edge=False)
    for place, name in enumerate(names):
        right = all(_is_number(row[place]) for row in page) and bool(page)
        table.add_column(
            Text(harmless(name)), justify="right" if right else "left", overflow="fold"
        )
    for row in page:
        table.add_row(*[_cell(value) for value in row])
    return table


def _is_number(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, _NUMBERS) and not isinstance(value, bool))
        or (type(value).__name__ == "Decimal")
    )


def _cell(value: Any) -> Text:
    return Text("NULL", style="dim italic") if value is None else Text(shown_value(value))


def _takes_lines(stream: TextIO) -> bool:
    try:
        "─".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def shown_value(value: Any) -> str:
    """A value, not None, as a person reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return harmless(str(value), newlines=True)


def csv_field(value: Any) -> str:
    """A value as a field of CSV."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
    if text and _QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def raw_json(text: str | None) -> Any:
    """A JSON value as it stands, on one line."""
    return None if text is None else msgspec.Raw(msgspec.json.format(text, indent=-1).encode())


def different(names: Sequence[str]) -> list[str]:
    """Names of which no two are equal: the second `id` becomes `id_2`.

    >>> different(["id", "name", "id"])
    ['id', 'name', 'id_2']
    """
    found: list[str] = []
    for name in names:
        count, one = 1, name
        while one in found:
            count += 1
            one = f"{name}_{count}"
        found.append(one)
    return found


def csv_rows(stream: TextIO) -> Iterator[list[str | None]]:
    """The rows of a CSV file: a field of nothing is None, `""` an empty text.

    Raises `ValueError` for a quote that is not closed.
    """
    row: list[str | None] = []
    for text in _records(stream):
        row, place = [], 0
        while True:
            if text.startswith('"', place):
                end = _closing_quote(text, place + 1)
                row.append(text[place + 1 : end].replace('""', '"'))
                place = end + 1
            else:
                end = text.find(",", place)
                end = len(text) if end < 0 else end
                row.append(text[place:end] or None)
                place = end
            if place >= len(text):
                break
            place += 1
            if place == len(text):
                row.append(None)
                break
        yield row


def _records(stream: TextIO) -> Iterator[str]:
    """Lines, joined where a quote holds a line's end."""
    held = io.StringIO()
    is_open = False
    for line in stream:
        is_open ^= line.count('"') % 2 == 1
        held.write(line)
        if not is_open:
            record = held.getvalue().rstrip("\r\n")
            held = io.StringIO()
            if record:
                yield record
    if is_open:
        raise ValueError("a quote is not closed")


def _closing_quote(text: str, place: int) -> int:
    while True:
        found = text.find('"', place)
        if found < 0:
            raise ValueError(f"a quote is not closed: {text[:40]!r}")
        if not text.startswith('""', found):
            return found
        place = found + 2
