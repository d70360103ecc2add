"""What a statement answers.

Invariants:
- `rows` are tuples of the Python values of `herd.types`, one for each of `columns`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from herd.types import ColumnType

if TYPE_CHECKING:
    import pyarrow

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """One column; `type` is None where no type of a column tells it."""

    name: str
    type: ColumnType | None


@dataclass(slots=True)
class Result:
    """The end of a statement.

    `count` is how many rows were changed, or returned; -1 where there is nothing to count. `kind`
    is the statement's first words: "SELECT", "UPDATE", "CREATE TABLE". `last_id` is the last
    AUTO_INCREMENT value that the statement used. `table` is what a query answered, if it ran in
    the query engine: `rows` are made of it when they are looked at.
    """

    columns: tuple[ResultColumn, ...] = ()
    rows: Rows = ()
    count: int = -1
    last_id: int | None = None
    kind: str = ""
    table: "pyarrow.Table | None" = field(default=None, repr=False)


class LazyRows(Sequence[tuple[Any, ...]]):
    """Rows that are made at the first look."""

    def __init__(self, count: int, make: Callable[[], list[tuple[Any, ...]]]) -> None:
        self._count = count
        self._make = make
        self._rows: list[tuple[Any, ...]] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        return self._made()[place]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._made())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == list(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return repr(self._made())

    def _made(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = self._make()
        return self._rows
