"""The option `where`: what is told exactly, and what is refused."""

import datetime

import pytest

from herd.errors import NotSupportedError
from herd.schema import Column, Table
from herd.snapshot.where import parse_where
from herd.types import BIGINT, ColumnType, Kind

TABLE = Table(
    1,
    "cows",
    1,
    (
        Column(0, "id", BIGINT, nullable=False),
        Column(1, "seen", ColumnType(Kind.TIMESTAMPTZ)),
        Column(2, "born", ColumnType(Kind.TIMESTAMP)),
    ),
    (0,),
    next_column=3,
)


def test_a_moment_is_told_with_its_zone() -> None:
    [condition] = parse_where("seen >= TIMESTAMP'2026-11-22 08:00:00+02:00'", TABLE)
    assert condition.values == (datetime.datetime(2026, 11, 22, 6, tzinfo=datetime.UTC),)


@pytest.mark.parametrize("moment", ["'2026-11-22 08:00:00'", "DATE'2026-11-22'", "'2026-11-22'"])
def test_a_moment_without_a_zone_is_refused(moment: str) -> None:
    with pytest.raises(NotSupportedError, match=r"seen is a moment, .* names no zone"):
        parse_where(f"seen < {moment}", TABLE)
    [condition] = parse_where(f"born < {moment}", TABLE)
    assert condition.values[0].tzinfo is None


@pytest.mark.parametrize(
    "text", ["id = CAST(1.9 AS INT)", "id BETWEEN SYMMETRIC 3 AND 2", "NOT (id BETWEEN 2 AND 3)"]
)
def test_what_would_be_told_wrongly_is_refused(text: str) -> None:
    with pytest.raises(NotSupportedError):
        parse_where(text, TABLE)
