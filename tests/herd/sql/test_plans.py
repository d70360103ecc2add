"""The plans of a tablespace, as they are kept by text."""

import pytest

from herd.catalog import Catalog
from herd.schema import Counters
from herd.sql.parsing import parse
from herd.sql.planning import CACHE_BYTES_MAX, Planned, Plans

CATALOG = Catalog({}, {}, Counters())


def planned(text: str) -> Planned:
    return Planned(parse(text), CATALOG)


def test_a_plan_is_made_once_for_a_text() -> None:
    plans = Plans()
    first = plans.plan("SELECT 1", CATALOG)
    assert plans.plan("SELECT 1", CATALOG) is first
    assert plans.known("SELECT 2") is None


def test_the_oldest_plans_go_when_there_are_too_many() -> None:
    plans, each = Plans(), planned("SELECT 1")
    texts = [f"SELECT {number}{' ' * 10_000}" for number in range(CACHE_BYTES_MAX // 600_000)]
    for text in texts:
        plans.keep(text, each)
    assert plans.known(texts[0]) is None
    assert plans.known(texts[-1]) is each


@pytest.mark.parametrize("characters", [100_000, 1_000_000])
def test_no_plan_goes_for_one_of_a_long_text(characters: int) -> None:
    plans = Plans()
    short = plans.plan("SELECT 1", CATALOG)
    for number in range(3):
        text = f"SELECT {number}{' ' * characters}"
        plans.keep(text, planned(text))
        assert plans.known(text) is not None
    assert plans.known("SELECT 1") is short
    assert plans.known(f"SELECT 0{' ' * characters}") is None, "only the newest is kept"
