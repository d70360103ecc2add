"""Every statement ends within a query's limits, with an answer or an error."""

import pytest

from tests.attack.hostile import HELD_BYTES_MAX, attack


@pytest.mark.parametrize("seed", range(4))
async def test_five_hundred_hostile_statements_stay_within_their_bounds(seed: int) -> None:
    found = await attack(seed, 500)
    assert not found.wrong
    assert sum(found.ends.values()) == 500
    assert found.held_bytes < HELD_BYTES_MAX
    # There are many kinds of statements, and not all are refused.
    assert found.ends[""] > 10 and found.ends["54000"] > 10 and len(found.ends) > 5
