"""What a stored state writes, when, and what it does when that fails."""

import asyncio
import random
from collections.abc import Iterable, Iterator

import pytest

from engine.errors import StateFailed
from engine.log.position import START
from engine.state.contract import Row
from engine.state.storage import Change, Mark
from engine.state.stored import StateSettings, StoredState
from tests.engine.state.machines import SimMachine, pass_time
from tests.engine.state.state_contract import all_rows, at, fill, numbered, paged
from tests.simulation.state import SimStorage

SLOW = StateSettings(gather_bytes=10_000, gather_ms=50)


class Counted(SimStorage):
    """A storage that tells what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []

    def write(self, changes: Iterable[Change], mark: Mark) -> None:
        changes = list(changes)
        super().write(changes, mark)
        self.writes.append((len(changes), mark.position.entry))


def simulated(machine: SimMachine, storage: SimStorage) -> StoredState:
    machine.states.storage = storage
    return machine.states.open(machine.workers, SLOW)


def test_commits_gather_and_are_written_together_some_moments_later() -> None:
    machine, storage = SimMachine(1), Counted()

    async def main() -> None:
        state = simulated(machine, storage)
        for entry in range(20):
            fill(state, {b"hot": b"%d" % entry, b"%d" % entry: b""}, entry)
        assert storage.writes == [] and state.unwritten_bytes > 0
        await pass_time(1)
        assert storage.writes == [(21, 19)] and state.unwritten_bytes == 0
        assert state.durable == START
        await state.close()

    machine.loop.run(main(), until_s=600)


def test_much_that_has_gathered_is_written_at_once() -> None:
    machine, storage = SimMachine(1), Counted()

    async def main() -> None:
        state = simulated(machine, storage)
        fill(state, {b"large": b"x" * 10_000}, 1)
        fill(state, {b"later": b"x"}, 2)
        await pass_time(0.049)
        assert storage.writes == [(1, 1)]
        await state.close()
        assert storage.writes == [(1, 1), (1, 2)]

    machine.loop.run(main(), until_s=600)


def test_one_write_is_small_and_ends_with_a_commit() -> None:
    machine, storage = SimMachine(1), Counted()

    async def main() -> None:
        machine.states.storage = storage
        state = machine.states.open(machine.workers)
        for entry in range(100):
            fill(state, {b"%d %d" % (entry, key): b"" for key in range(100)}, entry)
        fill(state, {b"%d" % key: b"" for key in range(1_000)}, 100)
        await state.flush()
        assert [rows for rows, _ in storage.writes] == [200] * 50 + [1_000]
        assert [entry for _, entry in storage.writes] == [*range(1, 100, 2), 100]
        await state.close()

    machine.loop.run(main(), until_s=600)


def test_whatever_moment_a_crash_comes_whole_commits_are_left() -> None:
    found = set()
    for seed in range(60):
        machine = SimMachine(seed)

        async def main(machine: SimMachine = machine, seed: int = seed) -> None:
            rng = random.Random(seed)
            state = machine.states.open(machine.workers, StateSettings(2_000, 3))
            flushing = None
            for entry in range(rng.randint(1, 100)):
                fill(state, {b"%d" % key: b"%d" % entry for key in range(20)}, entry)
                await pass_time(rng.random() * 0.002)
                if entry % 40 == 30:
                    flushing = asyncio.ensure_future(state.flush())
            durable = state.durable
            again = await machine.crash(state)
            assert again.position >= durable
            assert set(all_rows(again).values()) <= {b"%d" % again.position.entry}
            assert len(all_rows(again)) == (0 if again.position == START else 20)
            found.add(again.position.entry)
            await again.close()
            del flushing

        machine.loop.run(main(), until_s=600)
    assert len(found) > 10


def test_a_snapshot_taken_while_the_thread_writes_is_of_its_commit() -> None:
    for seed in range(8):
        machine = SimMachine(seed)

        async def main(machine: SimMachine = machine, seed: int = seed) -> None:
            rng = random.Random(seed)
            state = machine.states.open(machine.workers, SLOW)
            taken = []
            for entry in range(60):
                gone = dict.fromkeys(numbered(entry, entry + 40)) if entry % 3 else {}
                fill(state, {**numbered(entry * 5, entry * 5 + 150, b"%d/" % entry), **gone}, entry)
                if rng.random() < 0.3:
                    taken.append((state.snapshot(), sorted(all_rows(state).items())))
                await pass_time(rng.random() * 0.01)
                for snapshot, rows in rng.sample(taken, min(2, len(taken))):
                    assert paged(snapshot, 500) == rows
            for snapshot, rows in taken:
                assert paged(snapshot) == rows
                snapshot.close()
            await state.close()

        machine.loop.run(main(), until_s=600)


@pytest.mark.parametrize("fail_after", range(4))
def test_after_a_failed_write_or_flush_nothing_is_written_any_more(fail_after: int) -> None:
    machine, storage = SimMachine(1), Counted()

    async def main() -> None:
        state = simulated(machine, storage)
        state.check()
        storage.fail_after = fail_after
        with pytest.raises(StateFailed):
            for entry in range(10):
                fill(state, {b"a": b"%d" % entry}, entry)
                await state.flush()
        durable, writes = state.durable, list(storage.writes)
        # The disk is well again: what failed once is not trusted all the same.
        storage.fail_after = None
        for _ in range(2):
            with pytest.raises(StateFailed):
                await state.flush()
            with pytest.raises(StateFailed):
                state.commit(at(50))
            with pytest.raises(StateFailed):
                state.snapshot()
            with pytest.raises(StateFailed):
                state.check()
            with pytest.raises(StateFailed):
                await state.clear()
        with pytest.raises(StateFailed):
            await state.close()
        assert storage.writes == writes and state.durable == durable
        assert durable == (at(fail_after // 2 - 1) if fail_after >= 2 else START)
        again = machine.states.open(machine.workers, SLOW)
        assert again.position >= durable
        await again.close()

    machine.loop.run(main(), until_s=600)


def test_a_failed_write_lets_none_behind_it_pass() -> None:
    machine = SimMachine(1)

    class FailsOnce(Counted):
        failures = 0

        def write(self, changes: Iterable[Change], mark: Mark) -> None:
            if not self.failures:
                self.failures = 1
                raise OSError("a moment without room")
            super().write(changes, mark)

    storage = FailsOnce()

    async def main() -> None:
        state = simulated(machine, storage)
        fill(state, {b"a": b"1"}, 1)
        first = state.snapshot()
        # The thread has taken the first one when the second one is queued.
        machine.workers.slowness = 100
        await pass_time(0.001)
        fill(state, {b"a": b"2"}, 2)
        second = state.snapshot()
        await pass_time(60)
        assert storage.failures == 1 and storage.writes == []
        assert paged(first) == [(b"a", b"1")] and paged(second) == [(b"a", b"2")]
        with pytest.raises(StateFailed, match="without room"):
            fill(state, {b"a": b"3"}, 3)
        with pytest.raises(StateFailed):
            await state.close()
        assert storage.writes == []

    machine.loop.run(main(), until_s=600)


def test_what_cannot_be_read_is_a_failure_and_never_an_absent_row() -> None:
    machine = SimMachine(1)

    class Unreadable(SimStorage):
        def get(self, key: bytes) -> bytes | None:
            raise OSError("a bad block")

        def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
            yield b"a", b"1"
            raise OSError("a bad block")

    async def main() -> None:
        state = simulated(machine, Unreadable())
        assert state.scan(b"", None, 1) == [(b"a", b"1")]
        with pytest.raises(StateFailed, match="bad block"):
            state.scan(b"")
        with pytest.raises(StateFailed, match="bad block"):
            state.get(b"a")
        with pytest.raises(StateFailed):
            await state.close()

    machine.loop.run(main(), until_s=600)


def test_a_closed_state_and_a_closed_snapshot_say_so() -> None:
    machine = SimMachine(1)

    async def main() -> None:
        state = machine.states.open(machine.workers, SLOW)
        fill(state, {b"a": b"1"}, 1)
        snapshot = state.snapshot()
        await state.close()
        with pytest.raises(StateFailed, match="closed"):
            snapshot.page(None, 1)
        with pytest.raises(StateFailed, match="closed"):
            state.commit(at(2))
        with pytest.raises(StateFailed, match="closed"):
            await state.flush()

    machine.loop.run(main(), until_s=600)


def test_a_flush_under_way_while_the_state_is_cleared_claims_nothing() -> None:
    machine = SimMachine(1)

    async def main() -> None:
        state = machine.states.open(machine.workers, SLOW)
        fill(state, {b"a": b"1"}, 1)
        machine.workers.slowness = 100
        state.snapshot().close()
        await pass_time(0.01)
        # The thread is busy: the two are its next batch, together.
        flushing = asyncio.ensure_future(state.flush())
        clearing = asyncio.ensure_future(state.clear())
        assert await flushing == START
        await clearing
        assert state.durable == state.position == START and all_rows(state) == {}
        await state.close()

    machine.loop.run(main(), until_s=600)
