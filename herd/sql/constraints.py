"""Keys, references and conditions added to a table's definition.

Invariants:
- A definition that passed here can be kept by whoever writes rows: columns of keys have an order,
  a foreign key names a key of its parent and has an index of its own, a CHECK can be evaluated.
- Names of indexes and constraints are different within a table.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import NameTaken, NoSuchIndex, NotSupportedError, ProgrammingError, TypeMismatch
from herd.keys import encoder
from herd.schema import Building, Check, Column, ForeignKey, Index, OnDelete, Table
from herd.sql.expressions import Names, compile_expression
from herd.sql.parsing import check_no_schema, expression_text, place_of
from herd.sql.scalars import CannotEvaluate
from herd.types import INTEGER_BITS, ColumnType

_RULES: Final = {
    "CASCADE": OnDelete.CASCADE,
    "SET NULL": OnDelete.SET_NULL,
    "RESTRICT": OnDelete.RESTRICT,
    "NO ACTION": OnDelete.RESTRICT,
}

_OF_A_MOMENT: Final = (
    *(exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentDatetime),
    *(exp.Localtime, exp.Localtimestamp, exp.Rand, exp.Uuid, exp.Placeholder, exp.Parameter),
)
"""What has another value each time; a CHECK is looked at again when a row is changed."""


def changed(table: Table, **fields: Any) -> Table:
    """A table with some fields changed."""
    return msgspec.structs.replace(table, **fields)


def numbers_of(table: Table, names: Iterable[exp.Expr]) -> tuple[int, ...]:
    """The columns that a clause names. Raises `NoSuchColumn`, `NotSupportedError`."""
    from herd.sql.expressions import missing_column

    numbers: list[int] = []
    for node in names:
        inner = node.this if isinstance(node, exp.Ordered) else node
        if isinstance(inner, exp.Column):
            inner = inner.this
        if not isinstance(inner, exp.Identifier):
            raise NotSupportedError(
                "a key is made of columns, not of expressions", place=place_of(node)
            )
        column = table.by_name.get(inner.name.lower())
        if column is None:
            raise missing_column(table, inner)
        if column.number in numbers:
            raise ProgrammingError(f"{column.name} is named twice", place=place_of(node))
        numbers.append(column.number)
    return tuple(numbers)


def check_ordered(table: Table, numbers: Iterable[int]) -> None:
    """Raise `TypeMismatch` if values of a column have no order."""
    for number in numbers:
        encoder(table.by_number[number].type)


def constraint_names(table: Table) -> set[str]:
    """All names that indexes and constraints of a table have, in lower case."""
    named: list[Index | ForeignKey | Check] = [*table.indexes, *table.foreign_keys, *table.checks]
    return {one.name.lower() for one in named}


def new_name(table: Table, wanted: str, numbers: Sequence[int], kind: str) -> str:
    """The name that is wanted, or one made of the columns'. Raises `NameTaken`."""
    taken = constraint_names(table)
    if wanted:
        if wanted.lower() in taken:
            raise NameTaken(f"table {table.name} has an index or a constraint {wanted} already")
        return wanted
    stem = "_".join([table.name, *(table.by_number[n].name for n in numbers), kind])
    name, count = stem, 1
    while name.lower() in taken:
        count += 1
        name = f"{stem}{count}"
    return name


def with_index(
    table: Table,
    numbers: tuple[int, ...],
    *,
    name: str = "",
    unique: bool = False,
    constraint: bool = False,
    state: Building = Building.READY,
) -> Table:
    """A table with another index, which has no entries yet."""
    check_ordered(table, numbers)
    name = new_name(table, name, numbers, "key" if unique else "index")
    index = Index(table.next_index, name, numbers, unique, state, constraint)
    return changed(table, indexes=(*table.indexes, index), next_index=table.next_index + 1)


def with_check(table: Table, condition: exp.Expr, name: str = "") -> Table:
    """A table with another CHECK.

    Raises `NotSupportedError` for one that needs more than the row: a query, a parameter, the time.
    """
    other = condition.find(*_OF_A_MOMENT)
    if other is not None:
        raise NotSupportedError(
            f"CHECK ({expression_text(condition)}) would not hold for the same row at all times",
            hint="keep the moment in a column, DEFAULT CURRENT_TIMESTAMP, and compare with that",
            place=place_of(other) or place_of(condition),
        )
    try:
        compile_expression(condition, Names.of_definition(table))
    except CannotEvaluate:
        raise NotSupportedError(
            f"CHECK ({expression_text(condition)}) cannot be evaluated for a single row",
            hint="use columns of the row, constants, operators and plain functions",
            place=place_of(condition),
        ) from None
    check = Check(new_name(table, name, (), "check"), expression_text(condition))
    return changed(table, checks=(*table.checks, check))


def with_foreign_key(
    catalog: Catalog, table: Table, numbers: tuple[int, ...], node: exp.Expr, name: str = ""
) -> Table:
    """A table with another reference, and an index for it if it needs one.

    Raises `NoSuchTable`, `NoSuchIndex`, `TypeMismatch`, `NotSupportedError`.
    """
    target, named = node.this, []
    if isinstance(target, exp.Schema):
        named, target = target.expressions, target.this
    check_no_schema(target)
    same = target.name.lower() == table.name.lower()
    parent = table if same else catalog.table(target.name)
    parent_numbers = numbers_of(parent, named) if named else parent.primary
    numbers, parent_numbers = _in_order_of_key(parent, numbers, parent_numbers, node)
    for number, other in zip(numbers, parent_numbers, strict=True):
        _check_alike(table.by_number[number], parent.by_number[other])
    on_delete, on_update = _rules(node)
    key = ForeignKey(
        new_name(table, name, numbers, "fkey"),
        numbers,
        parent.id,
        parent_numbers,
        on_delete,
        on_update,
    )
    table = changed(table, foreign_keys=(*table.foreign_keys, key))
    return table if has_index_over(table, numbers) else with_index(table, numbers)


def has_index_over(table: Table, numbers: tuple[int, ...], but: int = 0) -> bool:
    """Whether the primary key or an index, except one, begins with these columns."""
    count = len(numbers)
    return table.primary[:count] == numbers or any(
        index.columns[:count] == numbers for index in table.indexes if index.number != but
    )


def _in_order_of_key(
    parent: Table, numbers: tuple[int, ...], wanted: tuple[int, ...], node: exp.Expr
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both sides in the order of the parent's key."""
    if len(numbers) != len(wanted):
        raise ProgrammingError(
            f"{len(numbers)} columns refer to {len(wanted)}", place=place_of(node)
        )
    unique = [i.columns for i in parent.indexes if i.unique and i.state is Building.READY]
    for key in (parent.primary, *unique):
        if set(key) == set(wanted) and len(key) == len(wanted):
            return tuple(numbers[wanted.index(number)] for number in key), key
    names = ", ".join(parent.by_number[number].name for number in wanted)
    raise NoSuchIndex(
        f"table {parent.name} has no primary or unique key over ({names})", place=place_of(node)
    )


def _check_alike(child: Column, parent: Column) -> None:
    if _family(child.type) != _family(parent.type):
        raise TypeMismatch(
            f"{child.name} is {child.type.sql}, {parent.name} that it refers to {parent.type.sql}"
        )


def _family(kind: ColumnType) -> tuple[object, ...]:
    """Types with equal families have equal bytes in keys for equal values."""
    if kind.kind in INTEGER_BITS:
        return ("integer",)
    return (kind.kind, kind.scale, kind.wide)


def _rules(node: exp.Expr) -> tuple[OnDelete, OnDelete]:
    found = {"DELETE": OnDelete.RESTRICT, "UPDATE": OnDelete.RESTRICT}
    for option in node.args.get("options") or ():
        words = str(option).upper().split()
        if len(words) < 3 or words[0] != "ON" or words[1] not in found:
            continue
        rule = _RULES.get(" ".join(words[2:]))
        if rule is None:
            raise NotSupportedError(f"a foreign key {option}", place=place_of(node))
        found[words[1]] = rule
    return found["DELETE"], found["UPDATE"]
