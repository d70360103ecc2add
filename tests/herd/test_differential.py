"""Generated statements give what SQLite and DuckDB give, where these agree."""

import pytest

from tests.herd.differential import Generator, run_seed

STATEMENTS = 250


@pytest.mark.parametrize("fast", [True, False], ids=["quick ways", "general ways"])
@pytest.mark.parametrize("seed", range(4))
async def test_generated_statements_give_what_others_give(seed: int, fast: bool) -> None:
    tally = await run_seed(seed, STATEMENTS, fast=fast)
    assert tally.statements >= STATEMENTS
    assert 0 < tally.refused < STATEMENTS / 3
    assert tally.disagreed < STATEMENTS / 5
    assert {"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"} <= set(tally.kinds)


def test_a_seed_makes_the_same_statements_again() -> None:
    first, again = Generator(3), Generator(3)
    texts = [first.statement().text for _ in range(200)]
    assert texts == [again.statement().text for _ in range(200)]
    assert texts != [Generator(4).statement().text for _ in range(200)]
