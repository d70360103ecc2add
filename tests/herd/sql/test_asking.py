"""What a text that stands alone would do."""

import pytest

from herd.sql.asking import alone
from herd.sql.parsing import parse


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM cows",
        "SELECT name FROM cows; -- all; of them",
        "SELECT name FROM cows /* all */ ;; ",
        "SELECT ';' AS \"a;b\" FROM cows WHERE id = ? -- LIMIT 3",
        "SELECT 'größer 🐄' FROM cows -- 🐄",
        "SELECT 1 UNION ALL SELECT 2 ORDER BY 1",
        "WITH a AS (SELECT 1 LIMIT 1) SELECT * FROM a",
        "FROM cows",
        "SELECT name FROM cows WHERE id = 1 ORDER BY name",
    ],
)
def test_a_query_is_bounded_as_its_text_says(text: str) -> None:
    said = alone(text, 10).parsed
    assert said.text.endswith("\nLIMIT 10")
    again = parse(said.text)
    assert (said.tree, said.count, said.word) == (again.tree, again.count, again.word)


@pytest.mark.parametrize(
    "text",
    ["SELECT name FROM cows LIMIT 3", "SELECT 1 OFFSET 1", "VALUES (1)", "DELETE FROM cows"],
)
def test_what_has_bounds_or_none_stays_as_it_is(text: str) -> None:
    assert alone(text, 10).parsed == parse(text)
