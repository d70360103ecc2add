"""What machines are shown, what they may get wrong, and what an older one does with newer rows."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequest, LevelTooNew, NotLeader, ReplicaFailed
from engine.log.position import Span
from engine.replica.applier import Applier
from engine.replica.contract import ReadRows, Role
from engine.replica.entries import Request, encode_command, encode_level, encode_session
from engine.replica.replica import Replica
from engine.replica.sessions import session_of
from engine.state.memory import MemoryState
from tests.engine.replica.machines import Bold, Careless, Curious, Newer, Register, commands
from tests.engine.replica.yard import LOG_SETTINGS, PATIENCE_MS, SETTINGS, until, yard

COMMANDS = [b"none", b"text", b"number", b"buffer", b"later", b"put text", b"put buffer"]


def _curious(sizes: list[int]) -> tuple[list[object], list[tuple[bytes, bytes]], int]:
    """The answers, the rows and the hash when the log came in batches of these sizes."""
    bodies = [encode_session(1), *commands(*[f"k{number}" for number in range(11)])]
    applier = Applier(Curious(), state := MemoryState(), "log")
    answers: list[object] = []
    for size in sizes:
        first = len(answers)
        batch = bodies[first : first + size]
        if batch:
            answers += applier.apply(Span(7, first, len(batch)), batch)
    return answers, state.scan_rows(b""), applier.summary.hash


@given(st.lists(st.integers(1, 5), min_size=12, max_size=12))
def test_a_replay_is_what_was_live_though_the_machine_looks_at_every_row(sizes: list[int]) -> None:
    assert _curious(sizes) == _curious([12])


async def test_a_follower_of_a_machine_that_looks_at_every_row_stays_equal() -> None:
    async with yard() as made:
        one = await made.leader("one", machine=Curious())
        answers = [await one.propose(b"cow%d" % number) for number in range(8)]
        two = await made.start("two", machine=Curious())
        await two.wait_for(one.position)

        def rows(shown: ReadRows) -> list[tuple[bytes, bytes]]:
            return shown.scan(b"")

        assert two.stale_read(rows)[0] == await one.read(rows)
        assert len(await one.read(rows)) == 8 and len(set(answers)) == 8


async def test_a_look_sees_no_row_of_the_replica_and_can_change_none() -> None:
    async with yard() as made:
        one = await made.leader("one")
        await one.propose(b"a=1")

        def look(rows: ReadRows) -> list[object]:
            assert not {"put", "delete", "commit", "clear"} & set(dir(rows))
            return [rows.get(b"\0#"), rows.get(b""), rows.scan(b""), rows.scan(b"\0", b"\1")]

        seen = [None, None, [(b"a", b"1")], []]
        assert await one.read(look) == one.read_now(look) == one.stale_read(look)[0] == seen
        view = one.view()
        assert [view.get(b"\0#"), view.get(b""), view.scan(b""), view.scan(b"\0", b"\1")] == seen
        view.close()


@pytest.mark.parametrize("command", COMMANDS, ids=bytes.decode)
def test_what_is_no_bytes_stops_the_replica_with_nothing_committed(command: bytes) -> None:
    for request in (None, Request(session_of(bytes(16)), 1)):
        applier = Applier(Careless(), state := MemoryState(), "log")
        applier.apply(Span(0, 0, 1), [encode_session(1)])
        at = state.position
        bodies = [*encode_command(b"good", 1, None), *encode_command(command, 1, request)]
        with pytest.raises(ReplicaFailed, match="bytes"):
            applier.apply(Span(0, 1, 2), bodies)
        assert applier.failed and state.position == at


@pytest.mark.parametrize("command", COMMANDS, ids=bytes.decode)
async def test_who_proposed_what_a_machine_answers_wrongly_is_told(command: bytes) -> None:
    async with yard() as made:
        one = await made.leader("one", machine=Careless())
        proposed = [asyncio.ensure_future(one.propose(text)) for text in (b"good", command)]
        for waiting in proposed:
            with pytest.raises(ReplicaFailed):
                await asyncio.wait_for(waiting, PATIENCE_MS / 1000)
        await until(lambda: one.role is Role.FAILED)
        assert one.failure is not None
        with pytest.raises(ReplicaFailed):
            one.propose(b"good")


async def test_a_defect_behind_the_applier_ends_the_term_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with yard() as made:
        one = await made.leader("one")

        def broken(span: object, bodies: object) -> list[object]:
            raise KeyError("a defect")

        monkeypatch.setattr(one._applier, "apply", broken)
        with pytest.raises(ReplicaFailed, match="a defect"):
            await asyncio.wait_for(one.propose(b"a=1"), PATIENCE_MS / 1000)
        await until(lambda: one.role is Role.FAILED)


@pytest.mark.parametrize("key", [b"", b"\0a", b"k" * 4_097])
def test_a_machine_may_refuse_a_row_that_does_not_fit(key: bytes) -> None:
    applier = Applier(Bold(), state := MemoryState(), "log")
    bodies = [encode_command(body, 1, None)[0] for body in (b"a", key, b"b")]
    assert applier.apply(Span(1, 0, 3), bodies) == [b"done", b"refused", b"done"]
    assert state.scan_rows(b"") == [(b"a", b"1"), (b"b", b"1")]
    other = Applier(Register(), MemoryState(), "log")
    with pytest.raises(ReplicaFailed, match=r"machine failed at Position\(ledger=1, entry=1\)"):
        other.apply(Span(1, 0, 2), [bodies[0], encode_command(key + b"=1", 1, None)[0]])


def test_an_older_program_refuses_rows_that_newer_commands_made() -> None:
    newer = Applier(Newer(), state := MemoryState(), "log")
    newer.apply(Span(7, 0, 2), [encode_level(2), *commands("a=1", level=2)])
    with pytest.raises(LevelTooNew, match="state has level 2"):
        Applier(Register(), state, "log")
    assert Applier(Newer(), state, "log").summary.level == 2


def test_an_older_program_stops_where_newer_commands_may_begin() -> None:
    applier = Applier(Register(), state := MemoryState(), "log")
    applier.apply(Span(7, 0, 1), commands("a=1"))
    with pytest.raises(LevelTooNew, match="level 2"):
        applier.apply(Span(7, 1, 2), [encode_level(2), *commands("a=2")])
    assert (applier.failed and state.get(b"a") == b"2") or state.get(b"a") == b"1"
    assert state.position.entry == 0


class _Kept(MemoryState):
    """A state that is still there after it was closed, as a folder is."""

    async def close(self) -> None:
        return None


async def test_an_older_program_restores_no_newer_snapshot_and_keeps_its_state() -> None:
    async with yard() as made:
        log_settings = replace(LOG_SETTINGS, roll_entries=10)
        state = _Kept()
        one = await made.leader("one", machine=Newer(), log_settings=log_settings)
        old = await made.start("old", state=state)
        await one.propose(b"a=1")
        await old.wait_for(one.position)
        await old.close()
        at = state.position
        await until(lambda: one._applier.summary.level == 2)
        for number in range(40):
            await one.propose(b"a=%d" % number, level=2)
        await one.snapshot()
        newest = await one._snapshots.newest()
        assert newest is not None and (await one.log.list()).dropped_through > at
        with pytest.raises(LevelTooNew, match="snapshot has level 2"):
            await made.start("old", state=state)
        assert state.position == at and state.get(b"a") == b"1"
        with pytest.raises(InvalidRequest):
            one.propose(b"a=1", level=3)


async def test_a_snapshot_tells_the_level_of_its_commands_and_not_of_its_program() -> None:
    async with yard() as made:
        settings = replace(SETTINGS, level_settle_ms=10**9)
        one = await made.leader("one", machine=Newer(), settings=settings)
        await one.propose(b"a=1")
        await one.snapshot()
        old: Replica = await made.start("old", machine=Register())
        await old.wait_for(one.position)
        with pytest.raises(NotLeader):
            old.propose(b"a=2")
