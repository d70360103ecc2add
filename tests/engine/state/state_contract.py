"""What every `State` does: one suite, run over each implementation.

A subclass gives `run`, which runs a scenario with a machine that opens the state and crashes.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from engine.errors import InvalidRequest
from engine.log.position import START, Position
from engine.state.contract import Row, Snapshot, State

BIG = 2**40


class Machine(Protocol):
    """Where a state lives."""

    lasting: bool
    """Whether anything outlives the process."""

    async def open(self) -> State:
        """Open the state, for the first time or after a close."""
        ...

    async def crash(self, state: State) -> State:
        """End the process that has it open, and open what is left."""
        ...

    async def wait(self) -> None:
        """Let its threads go on for a moment."""
        ...


Scenario = Callable[[Machine], Awaitable[None]]


def at(entry: int) -> Position:
    return Position(7, entry)


def fill(state: State, rows: dict[bytes, bytes | None], entry: int) -> None:
    """One commit."""
    for key, value in rows.items():
        if value is None:
            state.delete(key)
        else:
            state.put(key, value)
    state.commit(at(entry))


def all_rows(state: State) -> dict[bytes, bytes]:
    return dict(state.scan(b"", None, BIG))


def paged(snapshot: Snapshot, bytes_max: int = 1_000) -> list[Row]:
    """All rows of a snapshot, page by page."""
    rows: list[Row] = []
    while page := snapshot.page(rows[-1][0] if rows else None, bytes_max):
        rows += page
    return rows


def numbered(first: int, end: int, value: bytes = b"v") -> dict[bytes, bytes | None]:
    return {b"%06d" % number: value + b"%d" % number for number in range(first, end)}


async def leave(state: State) -> None:
    """Neither committed nor written."""


async def commit(state: State) -> None:
    state.commit(at(10))


async def flush(state: State) -> None:
    state.commit(at(10))
    await state.flush()


PHASES = pytest.mark.parametrize("settle", [leave, commit, flush])
Settle = Callable[[State], Awaitable[None]]


class StateContract(ABC):
    """Subclass it, give `run`, and every rule is tested."""

    @abstractmethod
    def run(self, scenario: Scenario) -> None:
        """Run a scenario with a new machine, to its end."""

    def test_a_new_state_is_empty_and_stands_at_the_start(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            assert state.position == state.durable == START
            assert state.get(b"a") is None and state.scan(b"") == []
            assert state.unwritten_bytes == 0 and await state.flush() == START
            state.check()
            snapshot = state.snapshot()
            assert snapshot.position == START and snapshot.page(None, 1_000) == []
            snapshot.close()
            await state.close()

        self.run(scenario)

    @PHASES
    def test_a_read_sees_every_change_made_so_far(self, settle: Settle) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"a": b"1", b"b": b"2", b"c": b"3", b"e": b""}, 1)
            await state.flush()
            state.put(b"b", b"22")
            state.delete(b"c")
            state.put(b"d", b"4")
            state.delete(b"nothing")
            await settle(state)
            found = {key: state.get(key) for key in (b"a", b"b", b"c", b"d", b"e", b"nothing")}
            assert found == {
                b"a": b"1", b"b": b"22", b"c": None, b"d": b"4", b"e": b"", b"nothing": None,
            }  # fmt: skip
            assert state.scan(b"") == [(b"a", b"1"), (b"b", b"22"), (b"d", b"4"), (b"e", b"")]
            state.put(b"c", b"again")
            state.delete(b"a")
            assert state.get(b"c") == b"again" and state.get(b"a") is None
            assert [key for key, _ in state.scan(b"")] == [b"b", b"c", b"d", b"e"]
            await state.close()

        self.run(scenario)

    @PHASES
    def test_a_scan_begins_at_its_first_key_and_stops_before_its_end(self, settle: Settle) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            keys = [b"\0", b"\0\0", b"a", b"a\0", b"a\xff", b"b", b"\xff", b"\xff\xff"]
            fill(state, {key: key for key in keys[::2]}, 1)
            await state.flush()
            for key in keys[1::2]:
                state.put(key, key)
            await settle(state)

            def scanned(first: bytes, end: bytes | None, limit: int = 1_000) -> list[bytes]:
                return [key for key, _ in state.scan(first, end, limit)]

            assert scanned(b"", None) == keys
            for first in [b"", b"0", *keys]:
                for end in [b"0", *keys, None]:
                    inside = [k for k in keys if k >= first and (end is None or k < end)]
                    assert scanned(first, end) == inside, (first, end)
                    assert scanned(first, end, 2) == inside[:2]
                    assert scanned(first, end, 0) == []
            await state.close()

        self.run(scenario)

    @PHASES
    def test_keys_that_begin_with_a_zero_byte_are_not_shown(self, settle: Settle) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"\0": b"0", b"\0own": b"1", b"\1": b"2", b"a": b"3"}, 1)
            await settle(state)
            state.put(b"\0#", b"4")
            for first in (b"", b"\0", b"\0z", b"\1"):
                assert state.scan_rows(first) == [(b"\1", b"2"), (b"a", b"3")]
                assert state.scan_rows(first, b"\0\xff") == [] == state.scan_rows(first, b"\1")
                assert state.scan_rows(first, b"a", 1) == [(b"\1", b"2")]
            keys = (b"", b"\0", b"\0own", b"\0#", b"\0none", b"\1", b"a")
            assert [state.get_row(key) for key in keys] == [None] * 5 + [b"2", b"3"]
            assert state.get(b"\0own") == b"1" and state.get(b"\0#") == b"4"
            state.commit(at(20))
            snapshot = state.snapshot()
            assert [snapshot.get(key) for key in keys] == [None] * 5 + [b"2", b"3"]
            assert snapshot.scan(b"") == [(b"\1", b"2"), (b"a", b"3")]
            assert snapshot.scan(b"", b"\0z") == []
            assert len(snapshot.page(None, 1_000)) == 5
            snapshot.close()
            await state.close()

        self.run(scenario)

    @PHASES
    def test_removed_rows_do_not_use_up_a_scans_limit(self, settle: Settle) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, numbered(0, 2_000), 1)
            await state.flush()
            for number in range(10, 1_990):
                state.delete(b"%06d" % number)
            await settle(state)
            found = [int(key) for key, _ in state.scan(b"000005", None, 10)]
            assert found == [5, 6, 7, 8, 9, 1990, 1991, 1992, 1993, 1994]
            assert state.scan(b"000010", b"001990") == []
            await state.close()

        self.run(scenario)

    def test_rows_of_every_size_are_kept_and_larger_ones_refused(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            large = {b"\xff" * 4_096: b"", b"k": b"v" * 17 * 2**20, b"\0": b"\0"}
            fill(state, dict(large), 1)
            await state.flush()
            assert all_rows(state) == large
            for key, value in ((b"", b"v"), (b"k" * 4_097, b""), (b"k", b"v" * (17 * 2**20 + 1))):
                with pytest.raises(InvalidRequest):
                    state.put(key, value)
            assert all_rows(state) == large
            await state.close()

        self.run(scenario)

    def test_a_clean_close_keeps_every_commit_and_nothing_uncommitted(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"a": b"1", b"gone": b"x"}, 1)
            fill(state, {b"b": b"2", b"gone": None}, 2)
            state.put(b"c", b"3")
            await state.close()
            await state.close()
            state = await machine.open()
            if machine.lasting:
                assert all_rows(state) == {b"a": b"1", b"b": b"2"}
                assert state.position == state.durable == at(2)
            else:
                assert all_rows(state) == {} and state.position == START
            await state.close()

        self.run(scenario)

    def test_a_crash_keeps_what_was_flushed_and_loses_only_last_commits(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            for entry in range(20):
                fill(state, {b"%d" % key: b"%d" % entry for key in range(entry % 7, 9)}, entry)
                if entry == 9:
                    assert await state.flush() == (at(9) if machine.lasting else START)
            durable = state.durable
            assert durable == (at(9) if machine.lasting else START)
            state = await machine.crash(state)
            assert state.position == state.durable >= durable
            expected: dict[bytes, bytes] = {}
            for entry in range(state.position.entry + 1):
                expected.update({b"%d" % key: b"%d" % entry for key in range(entry % 7, 9)})
            assert all_rows(state) == expected
            await state.close()

        self.run(scenario)

    def test_what_is_not_committed_never_becomes_durable(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"a": b"1"}, 1)
            state.put(b"a", b"2")
            state.put(b"b", b"2")
            flushed = await state.flush()
            state = await machine.crash(state)
            assert state.position == flushed
            assert all_rows(state) == ({b"a": b"1"} if machine.lasting else {})
            await state.close()

        self.run(scenario)

    def test_a_commit_without_changes_moves_the_position(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"a": b"1"}, 1)
            await state.flush()
            state.commit(at(5))
            state.commit(at(5))
            assert state.position == at(5)
            flushed = await state.flush()
            state = await machine.crash(state)
            assert state.position == flushed == (at(5) if machine.lasting else START)
            await state.close()

        self.run(scenario)

    def test_a_snapshot_is_of_its_commit_whatever_changes_afterwards(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, numbered(0, 1_000), 1)
            await state.flush()
            fill(state, numbered(500, 1_500, b"w"), 2)
            before = sorted(all_rows(state).items())
            snapshot = state.snapshot()
            fill(state, dict.fromkeys(numbered(0, 700)), 3)
            first = snapshot.page(None, 2_000)
            fill(state, numbered(600, 2_000, b"x"), 4)
            await state.flush()
            fill(state, {b"!": b"before all", b"~": b"behind all"}, 5)
            assert snapshot.position == at(2)
            assert paged(snapshot) == before and first == before[: len(first)]
            assert paged(snapshot, 10**9) == before
            await state.clear()
            assert paged(snapshot) == before and all_rows(state) == {}
            snapshot.close()
            snapshot.close()
            await state.close()

        self.run(scenario)

    @PHASES
    def test_a_snapshot_is_read_by_key_and_by_range_as_it_was(self, settle: Settle) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b""}, 1)
            await state.flush()
            state.delete(b"b")
            state.put(b"c", b"33")
            state.commit(at(2))
            snapshot = state.snapshot()
            fill(state, {b"a": b"later", b"b": b"later", b"d": None, b"e": b"later"}, 3)
            await settle(state)
            found = {key: snapshot.get(key) for key in (b"a", b"b", b"c", b"d", b"e")}
            assert found == {b"a": b"1", b"b": None, b"c": b"33", b"d": b"", b"e": None}
            assert snapshot.scan(b"a") == [(b"a", b"1"), (b"c", b"33"), (b"d", b"")]
            assert snapshot.scan(b"a\0", b"d") == [(b"c", b"33")]
            assert snapshot.scan(b"a", None, 1) == [(b"a", b"1")]
            assert snapshot.scan(b"a", None, 0) == [] == snapshot.scan(b"z")
            snapshot.close()
            await state.close()

        self.run(scenario)

    def test_snapshots_of_several_commits_live_beside_each_other(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            snapshots = []
            for entry in range(6):
                fill(state, numbered(entry * 100, entry * 100 + 300, b"%d/" % entry), entry)
                snapshots.append((state.snapshot(), sorted(all_rows(state).items())))
                if entry % 2:
                    await state.flush()
            for turn, place in enumerate((3, 0, 5, 1, 4, 2)):
                snapshot, rows = snapshots[place]
                fill(state, numbered(0, 900, b"later"), 10 + turn)
                assert paged(snapshot) == rows
                snapshot.close()
            await state.close()

        self.run(scenario)

    def test_the_end_of_one_snapshot_is_not_that_of_another(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, numbered(0, 1_000), 1)
            before = sorted(all_rows(state).items())
            first, second = state.snapshot(), state.snapshot()
            first.close()
            fill(state, numbered(0, 1_000, b"later"), 2)
            third = state.snapshot()
            assert paged(second) == before
            second.close()
            fill(state, numbered(0, 1_000, b"last"), 3)
            assert {value[:5] for _, value in paged(third)} == {b"later"}
            third.close()
            await state.close()

        self.run(scenario)

    def test_a_page_has_the_rows_that_fit_and_one_at_least(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            rows = {b"a": b"12345678", b"b": b"1234567", b"c": b"x" * 1_000, b"d": b""}
            fill(state, dict(rows), 1)
            snapshot = state.snapshot()
            ordered = sorted(rows.items())
            assert snapshot.page(None, 0) == ordered[:1]
            assert snapshot.page(None, 16) == ordered[:1]
            assert snapshot.page(None, 17) == ordered[:2]
            assert snapshot.page(b"b", 1) == ordered[2:3]
            assert snapshot.page(b"a\xff", 10**6) == ordered[1:]
            assert snapshot.page(b"d", 10**6) == [] and snapshot.page(b"zz", 1) == []
            snapshot.close()
            await state.close()

        self.run(scenario)

    def test_a_state_that_was_cleared_is_empty_for_ever(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, numbered(0, 500), 1)
            await state.flush()
            fill(state, numbered(400, 600), 2)
            state.put(b"x", b"uncommitted")
            await state.clear()
            assert state.position == state.durable == START and state.unwritten_bytes == 0
            assert all_rows(state) == {} and state.get(b"x") is None
            state = await machine.crash(state)
            assert all_rows(state) == {} and state.position == START
            fill(state, {b"a": b"1"}, 1)
            assert all_rows(state) == {b"a": b"1"} and state.position == at(1)
            await state.close()

        self.run(scenario)

    def test_a_restored_state_is_that_of_the_snapshot_and_goes_on(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"old": b"1"}, 1)
            await state.clear()
            rows = [(b"%06d" % number, b"%d" % number) for number in range(3_000)]
            for start in range(0, 3_000, 500):
                await state.restore(rows[start : start + 500])
                assert state.position == START == state.durable
            await state.restore([])
            await state.restored(at(99))
            assert state.position == at(99) and state.scan(b"", None, BIG) == rows
            assert state.durable == (at(99) if machine.lasting else START)
            fill(state, {b"000000": b"new"}, 100)
            snapshot = state.snapshot()
            assert paged(snapshot) == [(b"000000", b"new"), *rows[1:]]
            snapshot.close()
            state = await machine.crash(state)
            if machine.lasting:
                assert state.position in (at(99), at(100))
                assert state.scan(b"000001", None, BIG) == rows[1:]
            await state.close()

        self.run(scenario)

    def test_a_restoration_that_was_cut_short_leaves_nothing(self) -> None:
        async def scenario(machine: Machine) -> None:
            state = await machine.open()
            fill(state, {b"old": b"1"}, 1)
            await state.clear()
            await state.restore(sorted(numbered(0, 2_000).items()))  # type: ignore[arg-type]
            state = await machine.crash(state)
            assert all_rows(state) == {} and state.position == START
            await state.restore([(b"a", b"1")])
            await state.close()
            state = await machine.open()
            assert all_rows(state) == {} and state.position == START
            await state.restore([(b"a", b"1")])
            await state.clear()
            fill(state, {b"b": b"2"}, 1)
            assert all_rows(state) == {b"b": b"2"} and state.position == at(1)
            await state.close()

        self.run(scenario)
