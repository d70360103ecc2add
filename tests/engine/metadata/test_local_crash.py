"""The store in a folder loses its power, or an operation of its disk, at every point in turn."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from engine.errors import EngineError, MetadataUnavailable
from engine.metadata import facts_log
from engine.metadata.contract import MetadataStore
from engine.metadata.local import LocalStore
from tests.simulation.disk import PowerLoss, SimDisk
from tests.simulation.loop import new_loop
from tests.simulation.workers import SimWorkers

KEYS = 6
SEEDS = 6


class Told:
    """What callers were told, and what they tried: what must and what may be there later."""

    def __init__(self) -> None:
        self.version: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.numbers: list[int] = []
        self.cluster_id: str | None = None

    def check(self, key: str, version: int | None) -> None:
        """A version in the store is none older than acknowledged, none newer than tried."""
        assert self.version.get(key, -1) <= (-1 if version is None else version), key
        assert version is None or version <= self.tried[key], key


def _run(seed: int, scenario: Coroutine[Any, Any, Any]) -> Any:
    return new_loop(seed).run(scenario, until_s=600)


async def _open(disk: SimDisk, seed: int) -> LocalStore:
    loop: Any = asyncio.get_running_loop()
    rng = random.Random(seed)
    return await LocalStore.open(disk, SimWorkers(loop, loop.world, disk, rng), rng)


async def _work(disk: SimDisk, seed: int, told: Told) -> None:
    """Callers that create and set their own keys, at once, and draw numbers."""
    store = await _open(disk, seed)
    told.cluster_id = store.cluster_id

    async def caller(key: str) -> None:
        for version in range(8):
            told.tried[key] = version
            value = b"%d" % version * 40
            if version == 0:
                await store.create(key, value)
            else:
                await store.set(key, value, version - 1)
            told.version[key] = version
            told.numbers.append(await store.next_id("/ids/ledger"))

    callers = [caller(f"/cows/{number}") for number in range(KEYS)]
    for outcome in await asyncio.gather(*callers, return_exceptions=True):
        assert outcome is None or isinstance(outcome, MetadataUnavailable), outcome
    await store.close()


async def _check(disk: SimDisk, seed: int, told: Told) -> dict[str, int]:
    """Open again; all that was acknowledged is there. Returns the versions found."""
    store = await _open(disk, seed)
    if told.cluster_id is not None:
        assert store.cluster_id == told.cluster_id
    found = await _versions(store)
    for number in range(KEYS):
        told.check(f"/cows/{number}", found.get(f"/cows/{number}"))
    number = await store.next_id("/ids/ledger")
    assert number not in told.numbers and number > max(told.numbers, default=0)
    told.numbers.append(number)
    await store.close()
    return found


async def _versions(store: MetadataStore) -> dict[str, int]:
    versions = {}
    for name in await store.children("/cows"):
        found = await store.get(f"/cows/{name}")
        assert found is not None and found.value == b"%d" % found.version * 40
        versions[f"/cows/{name}"] = found.version
    return versions


def _operations(seed: int) -> int:
    """How many operations the undisturbed workload makes."""
    disk = SimDisk(random.Random(seed))
    told = Told()
    _run(seed, _work(disk, seed, told))
    assert told.version == {f"/cows/{number}": 7 for number in range(KEYS)}
    assert sorted(told.numbers) == list(range(1, 8 * KEYS + 1))
    return disk.operations


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites happen within the workload."""
    monkeypatch.setattr(facts_log, "REWRITE_BYTES_MIN", 2_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_loss_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    operations = _operations(seed)
    assert operations > 20
    for last in range(operations):
        disk, told = SimDisk(random.Random(1_000 * seed + last)), Told()
        disk.lose_power_after = last
        with pytest.raises(PowerLoss):
            _run(seed, _work(disk, seed, told))
        disk.lose_power()
        _run(seed, _check(disk, seed + 1, told))
        disk.lose_power()
        _run(seed, _check(disk, seed + 2, told))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_failing_operation_followed_by_a_power_loss_loses_nothing_acknowledged(
    seed: int,
) -> None:
    for failing in range(_operations(seed)):
        disk, told = SimDisk(random.Random(1_000 * seed + failing)), Told()
        disk.fail_after = failing
        try:
            _run(seed, _work(disk, seed, told))
        except EngineError:
            assert told.version == {}, "only an open may fail as a whole"
        disk.lose_power()
        _run(seed, _check(disk, seed + 1, told))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_restarted_store_has_shown_survives_a_power_loss(seed: int) -> None:
    """After a failed sync the bytes are readable, by this process and the next, and not durable."""
    for failing in range(_operations(seed)):
        disk, told = SimDisk(random.Random(1_000 * seed + failing)), Told()
        disk.fail_after = failing
        try:
            _run(seed, _work(disk, seed, told))
        except EngineError:
            assert told.version == {}
        disk.restart()
        shown = _run(seed, _show(disk, seed))
        disk.lose_power()
        assert _run(seed, _check(disk, seed, told)) == shown


async def _show(disk: SimDisk, seed: int) -> dict[str, int]:
    """Open, look, and end without closing."""
    return await _versions(await _open(disk, seed))
