"""A parent's key goes along into its children's columns only as far as these can hold it."""

import pytest

from herd.errors import DataError
from tests.herd.sql.sessions import asking


@pytest.mark.parametrize(
    ("parent", "child", "value", "wide", "narrow"),
    [
        ("BIGINT", "TINYINT", "1", "300", "100"),
        ("TEXT", "VARCHAR(3)", "'a'", "'abcdef'", "'abc'"),
        ("DECIMAL(12, 2)", "DECIMAL(6, 2)", "1.00", "12345678.00", "1234.50"),
    ],
)
async def test_what_no_child_can_hold_changes_nothing(
    parent: str, child: str, value: str, wide: str, narrow: str
) -> None:
    async with asking() as on:
        await on.run(
            f"CREATE TABLE p (id {parent} PRIMARY KEY)",
            f"CREATE TABLE c (n INT PRIMARY KEY, id {child} REFERENCES p (id) ON UPDATE CASCADE)",
            f"INSERT INTO p VALUES ({value})",
            f"INSERT INTO c VALUES (1, {value})",
        )
        before = await on.rows("SELECT * FROM p, c")
        with pytest.raises(DataError):
            await on.run(f"UPDATE p SET id = {wide}")
        assert await on.rows("SELECT * FROM p, c") == before
        await on.run(f"UPDATE p SET id = {narrow}")
        assert await on.rows("SELECT p.id = c.id FROM p, c") == [(True,)]
        on.check_indexes()
