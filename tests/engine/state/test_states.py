"""The three states pass one suite, and agree with a plain dict whatever is done to them."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.state.contract import Snapshot
from tests.engine.state.machines import run_in_memory, run_in_rocks, run_simulated
from tests.engine.state.state_contract import (
    BIG,
    Machine,
    Scenario,
    StateContract,
    all_rows,
    at,
    paged,
)


class TestMemoryState(StateContract):
    def run(self, scenario: Scenario) -> None:
        run_in_memory(scenario)


class TestRocksState(StateContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def run(self, scenario: Scenario) -> None:
        run_in_rocks(self.path, scenario)


class TestSimState(StateContract):
    def run(self, scenario: Scenario) -> None:
        for seed in range(5):
            run_simulated(seed, scenario)


KEYS = st.binary(min_size=1, max_size=3) | st.sampled_from([b"\0", b"\xff", b"a", b"a\0", b"b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=5)),
        st.tuples(st.just("put"), KEYS, st.binary(max_size=5)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("commit")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("scan"), KEYS, st.none() | KEYS, st.integers(0, 5)),
        st.tuples(st.just("snapshot"), st.integers(0, 2)),
        st.tuples(st.just("page"), st.integers(1, 30)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("crash")),
    ),
    max_size=60,
)


class Model:
    """A state beside a plain dict and the dicts of all its commits."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.rows: dict[bytes, bytes] = {}
        self.commits: list[dict[bytes, bytes]] = [{}]
        self.flushed = 0
        self.snapshots: list[tuple[Snapshot, list[tuple[bytes, bytes]]]] = []

    async def run(self, steps: list[tuple[object, ...]]) -> None:
        self.state = await self.machine.open()
        for name, *arguments in steps:
            await getattr(self, str(name))(*arguments)
            assert self.state.position.entry == (len(self.commits) - 1 or -1)
        assert all_rows(self.state) == self.rows
        await self.state.close()

    async def put(self, key: bytes, value: bytes) -> None:
        self.state.put(key, value)
        self.rows[key] = value

    async def delete(self, key: bytes) -> None:
        self.state.delete(key)
        self.rows.pop(key, None)

    async def commit(self) -> None:
        self.commits.append(dict(self.rows))
        self.state.commit(at(len(self.commits) - 1))

    async def flush(self) -> None:
        await self.state.flush()
        self.flushed = len(self.commits) - 1

    async def wait(self) -> None:
        await self.machine.wait()

    async def scan(self, first: bytes, end: bytes | None, limit: int) -> None:
        inside = [
            (key, value)
            for key, value in sorted(self.rows.items())
            if key >= first and (end is None or key < end)
        ]
        assert self.state.scan(first, end, limit) == inside[:limit]
        assert self.state.scan(first, end, BIG) == inside
        assert self.state.get(first) == self.rows.get(first)

    async def snapshot(self, closed: int) -> None:
        for snapshot, _ in self.snapshots[:closed]:
            snapshot.close()
        del self.snapshots[:closed]
        await self.commit()
        self.snapshots.append((self.state.snapshot(), sorted(self.rows.items())))

    async def page(self, bytes_max: int) -> None:
        for snapshot, rows in self.snapshots:
            assert paged(snapshot, bytes_max) == rows

    async def reopen(self) -> None:
        await self.state.close()
        self.snapshots.clear()
        self.state = await self.machine.open()
        self._found(len(self.commits) - 1)

    async def crash(self) -> None:
        self.state = await self.machine.crash(self.state)
        self.snapshots.clear()
        self._found(self.flushed)

    def _found(self, at_least: int) -> None:
        entry = max(self.state.position.entry, 0)
        assert entry >= at_least if self.machine.lasting else entry == 0
        del self.commits[entry + 1 :]
        self.flushed = entry
        self.rows = dict(self.commits[-1])
        assert all_rows(self.state) == self.rows


def check(run: Callable[[Scenario], None], steps: list[tuple[object, ...]]) -> None:
    async def scenario(machine: Machine) -> None:
        await Model(machine).run(steps)

    run(scenario)


@given(steps=STEPS)
def test_a_state_in_memory_does_what_a_dict_does(steps: list[tuple[object, ...]]) -> None:
    check(run_in_memory, steps)


@given(steps=STEPS)
@settings(max_examples=25)
def test_a_state_in_rocksdb_does_what_a_dict_does(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(lambda scenario: run_in_rocks(Path(folder), scenario), steps)


@given(steps=STEPS, seed=st.integers(0, 999))
@settings(max_examples=200)
def test_a_simulated_state_does_what_a_dict_does(
    steps: list[tuple[object, ...]], seed: int
) -> None:
    check(lambda scenario: run_simulated(seed, scenario), steps)
