"""What rows a stream has of what was committed."""

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from engine.log import START, Position
from herd.capture.interest import ManyTables, OneTable
from herd.capture.shape import Shape, json_schema, row_json, shape_of, table_schema
from herd.commands import Write
from herd.errors import NotSupportedError, ProgrammingError, StorageFailed
from herd.keys import TABLE, catalog_key
from herd.rows import encode_row
from herd.schema import Column, Table, key_of
from herd.types import BIGINT, TEXT, ColumnType, Kind, Stored

COLUMNS = (Column(0, "id", BIGINT, nullable=False), Column(1, "name", TEXT))
COW = Table(1, "cow", 7, COLUMNS, (0,), next_column=2)
FULL = msgspec.structs.replace(COW, full_changes=True)
HERE = Position(3, 5)


def put(table: Table, *row: Stored) -> tuple[bytes, bytes]:
    return key_of(table, list(row)), encode_row(list(row))


def gone(table: Table, number: int) -> tuple[bytes, None]:
    return table.prefix + table.encode_primary([number]), None


def defined(table: Table) -> tuple[bytes, bytes]:
    """A definition as a command has it."""
    return catalog_key(TABLE, table.id), msgspec.msgpack.encode(table)


def of_one(table: Table, *, before: bool = False) -> Shape:
    return shape_of(OneTable(table, START, before), [table])


def of_all(*tables: Table, before: bool = False) -> Shape:
    return shape_of(ManyTables(frozenset(), before), tables)


def told(shape: Shape, *names: str) -> list[tuple[Any, ...]]:
    batch = shape.batch()
    assert batch.schema == shape.schema
    batch.validate(full=True)
    return [tuple(row[name] for name in names) for row in batch.to_pylist()]


def test_a_change_has_its_place_and_a_deletion_tells_the_key_alone() -> None:
    shape = of_one(COW)
    shape.take(HERE, Write([put(COW, 1, "elsa"), gone(COW, 2)]))
    place = {"ledger": 3, "entry": 5}
    assert shape.rows == 2
    assert told(shape, "_position", "_sequence", "_table", "_kind", "id", "name") == [
        (place, 0, "cow", "put", 1, "elsa"),
        (place, 1, "cow", "delete", 2, None),
    ]
    assert shape.rows == 0
    assert told(shape, "id") == []


def test_rows_as_they_were_stand_beside_those_that_are() -> None:
    shape = of_one(FULL, before=True)
    a, b, c = put(FULL, 1, "a"), put(FULL, 2, "b"), gone(FULL, 3)
    old = encode_row([2, "old"])
    shape.take(HERE, Write([a, b, c], (), [(a[0], None), (b[0], old), (c[0], old)]))
    was = {"id": 2, "name": "old"}
    assert told(shape, "_kind", "id", "name", "_before") == [
        ("insert", 1, "a", None),
        ("update", 2, "b", was),
        ("delete", 3, None, was),
    ]


def test_a_row_of_which_nobody_logged_how_it_was_is_an_error_that_names_its_place() -> None:
    for shape in (of_one(COW, before=True), of_all(COW, before=True)):
        with pytest.raises(NotSupportedError, match=r"cow did not log rows as .* at 3/5"):
            shape.take(HERE, Write([put(COW, 1, "a")]))
        with pytest.raises(NotSupportedError, match=r"cow did not log rows as .* at 3/5"):
            shape.take(HERE, Write([gone(COW, 1)]))


def test_rows_of_another_table_are_left_out() -> None:
    horse = msgspec.structs.replace(COW, id=2, store=8, name="horse")
    shape = of_one(COW)
    shape.take(HERE, Write([put(horse, 1, "no"), put(COW, 2, "yes"), put(horse, 3, "no")]))
    assert told(shape, "_sequence", "id") == [(0, 2)]


def test_a_table_that_is_emptied_tells_so_before_what_comes_into_it() -> None:
    anew = msgspec.structs.replace(COW, store=9)
    write = Write([put(COW, 1, "was never there"), put(anew, 2, "is")], [defined(anew)])
    one, every = of_one(COW), of_all(COW)
    for shape in (one, every):
        shape.take(HERE, write)
        shape.take(Position(3, 6), Write([put(anew, 3, "later")]))
    assert told(one, "_sequence", "_kind", "id") == [
        (0, "empty", None),
        (1, "put", 2),
        (0, "put", 3),
    ]
    assert told(every, "_sequence", "_kind", "key") == [
        (0, "empty", None),
        (1, "put", '{"id":2}'),
        (0, "put", '{"id":3}'),
    ]


def test_a_table_that_is_dropped_tells_so_and_nothing_after() -> None:
    drop = Write([put(COW, 1, "was never there")], [(catalog_key(TABLE, COW.id), None)])
    one, every = of_one(COW), of_all(COW)
    for shape in (one, every):
        shape.take(HERE, drop)
    one.take(Position(3, 6), Write([put(COW, 1, "nobody's")]))
    assert told(one, "_kind", "id") == [("drop", None)]
    assert told(every, "_kind", "key", "row") == [("drop", None, None)]


def test_older_rows_are_read_as_a_query_of_the_stream_s_time_would() -> None:
    born = Column(2, "born", TEXT, fill="unknown")
    now = msgspec.structs.replace(COW, columns=(COLUMNS[0], born), next_column=3)
    shape = shape_of(OneTable(now, HERE), [COW])
    shape.take(Position(1, 0), Write([put(COW, 1, "elsa")]))
    shape.take(Position(1, 1), Write([gone(COW, 2)], [defined(now)]))
    assert told(shape, "_kind", "id", "born") == [("put", 1, "unknown"), ("delete", 2, None)]


def test_a_row_that_does_not_fit_the_columns_of_now_is_an_error() -> None:
    small = Column(1, "name", ColumnType(Kind.TINYINT))
    shape = of_one(msgspec.structs.replace(COW, columns=(COLUMNS[0], small)))
    shape.take(HERE, Write([put(COW, 1, 1_000)]))
    with pytest.raises(StorageFailed, match=r"table cow: changed rows do not fit its columns"):
        shape.batch()


def test_a_column_with_a_name_of_the_stream_s_own_is_refused() -> None:
    taken = msgspec.structs.replace(COW, columns=(COLUMNS[0], Column(1, "_Kind", TEXT)))
    with pytest.raises(ProgrammingError, match=r"cow: a stream has a _Kind .* tables=cow"):
        table_schema(OneTable(taken, START))


def test_every_kind_of_value_is_told_exactly() -> None:
    kinds: list[tuple[ColumnType, Stored, Any]] = [
        (ColumnType(Kind.DECIMAL, 38, 2), (-(10**37)).to_bytes(16, signed=True), None),
        (ColumnType(Kind.DECIMAL, 10, 2), -150, Decimal("-1.50")),
        (ColumnType(Kind.UUID), bytes(range(16)), bytes(range(16))),
        (ColumnType(Kind.TIME), 61_000_001, 61_000_001),
        (ColumnType(Kind.JSON), '{"a": [1]}', '{"a": [1]}'),
        (ColumnType(Kind.FLOATS), [0.5, -2.0], [0.5, -2.0]),
        (ColumnType(Kind.BLOB), b"\x00\xff", b"\x00\xff"),
    ]
    kinds[0] = (*kinds[0][:2], Decimal(-(10**37)).scaleb(-2))
    columns = tuple(Column(place, f"c{place}", kind[0]) for place, kind in enumerate(kinds, 1))
    table = Table(1, "cow", 7, (COLUMNS[0], *columns), (0,), next_column=len(columns) + 1)
    row = [1, *[stored for _, stored, _ in kinds]]
    shape = of_one(table)
    shape.take(HERE, Write([put(table, *row), put(table, 2, *[None] * len(kinds))]))
    names = [column.name for column in columns]
    assert told(shape, *names) == [
        tuple(value for _, _, value in kinds),
        (None,) * len(kinds),
    ]
    every = of_all(table)
    every.take(HERE, Write([put(table, *row)]))
    [(text,)] = told(every, "row")
    found = json.loads(text, parse_float=Decimal)
    assert found["c2"] == Decimal("-1.50")
    assert found["c3"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert found["c5"] == {"a": [1]}
    assert found["c7"] == "AP8="


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, '"NaN"'), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (0.5, "0.5")],
)
def test_json_tells_numbers_that_it_has_no_form_for_as_text(value: float, text: str) -> None:
    column = Column(0, "weight", ColumnType(Kind.DOUBLE))
    assert row_json([column], {"weight": value}) == f'{{"weight":{text}}}'
    assert row_json([column], {"weight": None}) == '{"weight":null}'


def test_definitions_are_told_of_many_tables_and_each_row_by_the_one_of_its_moment() -> None:
    titled = msgspec.structs.replace(COW, columns=(COLUMNS[0], Column(1, "title", TEXT)))
    shape = of_all(COW)
    shape.take(HERE, Write([put(COW, 1, "a")]))
    shape.take(Position(3, 6), Write([put(COW, 1, "b")], [defined(titled)]))
    assert shape.schema == json_schema(before=False)
    assert told(shape, "_kind", "row") == [
        ("put", '{"id":1,"name":"a"}'),
        ("define", None),
        ("put", '{"id":1,"title":"b"}'),
    ]
