"""Both levels of isolation under many transactions at once, judged by the cycles they leave."""

import asyncio
import itertools
import random
from collections.abc import Callable
from unittest.mock import patch

import pytest

from herd.settings import HerdSettings
from herd.transaction import Isolation, Transaction
from tests.engine.ledger.scripted import Cluster
from tests.herd.histories import Plan, all_lists, play
from tests.herd.spaces import made, opened
from tests.serializability import READ_COMMITTED, SNAPSHOT, Anomaly, Kind, Outcome, check
from tests.serializability import Transaction as Told
from tests.simulation.virtual import elapse, virtually

SEEDS = 5
CLIENTS = 10
EACH = 30
LISTS = 5
_QUICK_LOCKS = HerdSettings(lock_timeout_ms=200)


def shown(
    seed: int, draw: Callable[[random.Random], Isolation]
) -> tuple[list[Anomaly], list[Told]]:
    """What a drawn history of concurrent transactions shows, and the history."""
    history: list[Told] = []
    found: list[Anomaly] = []

    async def script() -> None:
        rng = random.Random(seed)
        cluster = await Cluster.of(1)
        async with opened(_QUICK_LOCKS, cluster=cluster) as space:
            table = await made(space, "lists")
            values = itertools.count(1)
            bookie = cluster.bookies[0]
            bookie.holding = True

            async def pause() -> None:
                await elapse(rng.choice([0.0, 0.0, 0.002, 0.01]))

            async def disk() -> None:
                while True:
                    await elapse(rng.choice([0.001, 0.004]))
                    bookie.release()

            async def client(name: str) -> None:
                for number in range(EACH):
                    plan = Plan.drawn(rng, LISTS, draw(rng), lambda: next(values))
                    history.append(await play(space, table, plan, f"{name}.{number}", pause))

            syncing = asyncio.create_task(disk())
            await asyncio.gather(*[client(f"T{number}") for number in range(CLIENTS)])
            syncing.cancel()
            bookie.holding = False
            bookie.release()
            assert len(space.locks) == 0 and not space.transactions
            found.extend(check(history, all_lists(space, table, LISTS)))

    virtually(script())
    return found, history


def committed(history: list[Told]) -> int:
    """How many were."""
    return sum(one.outcome is Outcome.COMMITTED for one in history)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_read_committed_shows_no_dirty_write_and_no_dirty_read(seed: int) -> None:
    found, history = shown(seed, lambda rng: Isolation.READ_COMMITTED)
    assert [str(one) for one in found if one.kind in READ_COMMITTED] == []
    assert committed(history) > CLIENTS * EACH // 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_snapshots_show_no_skewed_read_and_no_lost_update(seed: int) -> None:
    found, history = shown(seed, lambda rng: Isolation.SNAPSHOT)
    assert [str(one) for one in found if one.kind in SNAPSHOT] == []
    assert committed(history) > CLIENTS * EACH // 4


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_levels_beside_each_other_show_no_more_than_the_lower_one_may(seed: int) -> None:
    found, _ = shown(seed, lambda rng: rng.choice(list(Isolation)))
    assert [str(one) for one in found if one.kind in READ_COMMITTED] == []


def test_the_checker_finds_what_each_level_allows() -> None:
    """Else the tests above would say nothing: reads that skew, and writes that do."""
    lower, _ = shown(0, lambda rng: Isolation.READ_COMMITTED)
    higher, _ = shown(0, lambda rng: Isolation.SNAPSHOT)
    assert Kind.G_SINGLE in {one.kind for one in lower}
    assert Kind.G2 in {one.kind for one in higher}


def test_the_checker_finds_a_snapshot_that_looks_away() -> None:
    with patch.object(Transaction, "check_unchanged", lambda *_: None):
        found, _ = shown(0, lambda rng: Isolation.SNAPSHOT)
    assert Kind.G_SINGLE in {one.kind for one in found}
