"""How far a stream goes on, how its work is cut, and what ends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.log import START, Position, ReplicatedLog
from herd.capture import survey as surveys
from herd.capture.interest import Interest, ManyTables, OneTable, shown
from herd.capture.survey import Limit, Stretch, Survey, parsed
from herd.capture.walk import Walk
from herd.catalog import erasing
from herd.commands import Write, encode_command
from herd.errors import InterfaceError, NotSupportedError, ProgrammingError, StorageFailed
from herd.reading_log import read_commands
from herd.schema import Column
from herd.types import TEXT
from tests.herd.checkpoint.test_building import Setup, change, opened, taken
from tests.herd.test_changes import LOG, redefine

EVERYTHING = ManyTables()


@asynccontextmanager
async def surveying(
    setup: Setup, interest: Interest = EVERYTHING, consumer: str = ""
) -> AsyncIterator[Survey]:
    survey = Survey(setup.client, "farm", interest, consumer=consumer)
    try:
        yield survey
    finally:
        await survey.close()


def following(setup: Setup) -> OneTable:
    """A stream of the cows as they are defined now."""
    return OneTable(setup.space.catalog.table("cow"), setup.space.replica.position)


async def committed(setup: Setup, stretch: Stretch) -> list[Position]:
    """The transactions that lie in a stretch."""
    log = ReplicatedLog(setup.client, LOG)
    commands = read_commands(log, stretch.after, stretch.last)
    return [position async for position, command in commands if type(command) is Write]


async def test_batches_are_cut_before_the_transaction_that_goes_over_the_limit(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        ends = []
        for turn in range(6):
            await change(setup, {turn * 10 + row: "moo" for row in range(3)})
            ends.append(setup.space.replica.position)
        start = await survey.position("earliest")
        found = []
        while (end := await survey.latest(start, Limit(rows=7))) != start:
            found.append(end)
            start = end
        assert found == [ends[1], ends[3], ends[5]]
        # What is more than a batch may have comes alone, and whole.
        assert await survey.latest(ends[0], Limit(rows=1)) == ends[1]
        assert await survey.latest(ends[0], Limit(size_bytes=1)) == ends[1]
        assert await survey.latest(ends[0]) == ends[5]


async def test_stretches_have_each_transaction_once_wherever_they_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "STRETCH_BYTES", 300)
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        for turn in range(40):
            await change(setup, {turn: "moo" * turn})
            if turn == 20:
                await taken(setup)
        log = ReplicatedLog(setup.client, LOG)
        whole = [position async for position, _ in read_commands(log, START, await log.end())]
        end = await survey.latest(START)
        planned = await survey.stretches(START, end)
        async with surveying(setup) as another:
            assert await another.stretches(START, end) == planned
            tail = await another.stretches(whole[25], end)
        assert len(planned) > 5
        assert [one for cut in planned for one in await committed(setup, cut)] == whole
        assert [one for cut in tail for one in await committed(setup, cut)] == whole[26:]
        assert [table.name for table in tail[0].tables] == ["cow"]


async def test_a_command_in_parts_is_never_cut(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        await change(setup, {1: "small"})
        small = setup.space.replica.position
        await change(setup, dict.fromkeys(range(4), "x" * 2_500_000))
        large = setup.space.replica.position
        assert large.entry - small.entry > 2, "it has parts"
        inside = Position(large.ledger, large.entry - 1)
        assert await survey.position(shown(inside)) == small
        assert await survey.latest(small, Limit(size_bytes=10)) == large
        [stretch] = await survey.stretches(small, large)
        assert await committed(setup, stretch) == [large]
        with pytest.raises(InterfaceError, match="inside of a transaction"):
            await survey.stretches(small, inside)


async def test_who_waits_hears_of_the_next_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        await change(setup, {1: "one"})
        start = await survey.position("latest")
        assert await survey.latest(start) == start
        await change(setup, {1: "two"})
        assert await survey.latest(start) == setup.space.replica.position


async def test_nothing_after_a_target_is_handed_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        await change(setup, {1: "one"})
        target = await survey.position("latest")
        await change(setup, {1: "two"})
        assert await survey.latest(START, until=target) == target
        assert await survey.latest(target, until=target) == target


async def test_what_is_known_to_be_there_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives = Walk.arrives

    async def after_a_second(walk: Walk, wait_s: float) -> bool:
        return wait_s >= 1 and await arrives(walk, wait_s)

    monkeypatch.setattr(Walk, "arrives", after_a_second)
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        await change(setup, {1: "moo"})
        start, end = await survey.position("earliest"), await survey.end()
        assert await survey.latest(start) == start
        assert await survey.latest(start, until=end) == end


async def test_a_change_of_the_columns_ends_a_stream_after_all_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup, following(setup)) as survey:
        start = await survey.position("latest")
        await change(setup, {1: "old"})
        old = setup.space.replica.position
        columns = (*setup.table.columns, Column(2, "born", TEXT))
        await redefine(setup, columns=columns, next_column=3)
        now = setup.space.replica.position
        await change(setup, {1: "new"})
        assert await survey.latest(start) == old
        with pytest.raises(ProgrammingError, match=r"column born was added.*load the table again"):
            await survey.latest(old)
        with pytest.raises(ProgrammingError, match=f"table cow: at {shown(now)} column born"):
            await survey.stretches(start, setup.space.replica.position)
        # Who has loaded it again goes on where the other one ended.
        async with surveying(setup, following(setup)) as again:
            assert await again.latest(old) == setup.space.replica.position


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((Column(0, "id", TEXT), Column(1, "name", TEXT)), "column id became VARCHAR"),
        ((Column(0, "id", TEXT),), "column id became VARCHAR"),
        ((Column(1, "name", TEXT),), "column id was dropped"),
    ],
)
async def test_what_became_of_a_column_is_told(
    tmp_path: Path, columns: tuple[Column, ...], message: str
) -> None:
    async with opened(tmp_path) as setup, surveying(setup, following(setup)) as survey:
        start = await survey.position("latest")
        await redefine(setup, columns=columns)
        with pytest.raises(ProgrammingError, match=message):
            await survey.latest(start)


async def test_a_definition_with_the_same_columns_ends_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup, following(setup)) as survey:
        start = await survey.position("latest")
        await redefine(setup, full_changes=True)
        assert await survey.latest(start) == setup.space.replica.position


async def test_another_table_of_the_name_is_not_told_under_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup, following(setup)) as survey:
        start = await survey.position("latest")
        transaction = setup.space.begin()
        transaction.set_catalog(*transaction.catalog.without_table(setup.table))
        await transaction.commit()
        dropped = setup.space.replica.position
        transaction = setup.space.begin()
        catalog, [number] = transaction.catalog.new_ids(1)
        other = msgspec.structs.replace(setup.table, id=number, store=number)
        transaction.set_catalog(*catalog.with_table(other))
        await transaction.commit()
        end = await survey.latest(start)
        assert end >= dropped, "the rows' erasure may follow it"
        with pytest.raises(ProgrammingError, match="another table was made as cow"):
            await survey.latest(end)
        async with surveying(setup, following(setup)) as later:
            with pytest.raises(ProgrammingError, match="table cow was another one than now"):
                await later.latest(start)


async def restore(setup: Setup, name: str) -> None:
    """A table comes whose rows were there before it."""
    transaction = setup.space.begin()
    catalog, [number] = transaction.catalog.new_ids(1)
    put = msgspec.structs.replace(setup.table, id=number, store=number, name=name)
    catalog, definitions = catalog.with_table(put)
    transaction.rollback()
    write = Write((), [*definitions, (erasing(number)[0], None)])
    await setup.space.propose(encode_command(write), setup.space.term)


async def test_rows_that_came_before_their_table_end_a_stream(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        start = await survey.position("latest")
        await restore(setup, "horse")
        with pytest.raises(NotSupportedError, match=r"table horse: .*put in its place at once"):
            await survey.latest(start)


async def test_rows_that_came_before_a_table_that_is_not_told_end_nothing(tmp_path: Path) -> None:
    some = ManyTables(frozenset({"cow", "sheep"}))
    async with opened(tmp_path) as setup, surveying(setup, some) as survey:
        start = await survey.position("latest")
        await restore(setup, "horse")
        await change(setup, {1: "moo"})
        end = await survey.latest(start)
        assert end == setup.space.replica.position
        await restore(setup, "Sheep")
        with pytest.raises(NotSupportedError, match=r"table Sheep: .*put in its place at once"):
            await survey.latest(end)


async def test_a_log_that_was_cut_off_tells_where_to_begin_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "one"})
        lost = setup.space.replica.position
        await change(setup, {2: "two"})
        log = ReplicatedLog(setup.client, LOG)
        for _ in range(3):
            await taken(setup)
            await setup.space.replica._leading.writer.roll()  # type: ignore[union-attr]
            await change(setup, {3: "three"})
        await log.truncate(await log.end())
        kept = (await setup.checkpointer.list.get()).kept[0]
        async with surveying(setup) as survey:
            assert await survey.position("earliest") == kept.position
            with pytest.raises(StorageFailed, match=rf"snapshot={kept.number}.*start="):
                await survey.latest(lost)


async def test_what_a_consumer_has_not_committed_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup, surveying(setup, consumer="etl") as survey:
        await taken(setup)
        start = await survey.position("latest")
        await change(setup, {1: "one"})
        end = await survey.latest(start)
        first = (await setup.checkpointer.list.get()).newest
        await taken(setup)
        last = (await setup.checkpointer.list.get()).newest
        assert first is not None and last is not None

        async def pinned() -> tuple[list[int], list[Position]]:
            checkpoints = (await setup.checkpointer.list.get()).pins
            log = (await ReplicatedLog(setup.client, LOG).list()).pins
            return (
                [pin.number for pin in checkpoints if pin.name == "changes:etl"],
                [pin.position for pin in log if pin.name == "changes:etl"],
            )

        assert await pinned() == ([first.number], [first.position])
        await survey.commit(end)
        assert await pinned() == ([last.number], [last.position])
        await survey.close(forget=True)
        assert await pinned() == ([], [])


@pytest.mark.parametrize("text", ["", "12", "a/b", "12/", "-1/0", "0/-2"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InterfaceError, match=r"position in a log|before the beginning"):
        parsed(text)


async def test_a_start_past_the_end_and_a_tablespace_that_is_not_there_are_refused(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup, surveying(setup) as survey:
        with pytest.raises(InterfaceError, match="is past the end of tablespace farm's log"):
            await survey.position("999999/0")
        with pytest.raises(ProgrammingError, match="there is no tablespace zoo"):
            await Survey(setup.client, "zoo", EVERYTHING).position("latest")


async def test_a_survey_is_closed_while_it_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        async with surveying(setup) as survey:
            start = await survey.position("latest")
            assert await survey.latest(start) == start
        assert not [task for task in asyncio.all_tasks() if "LogReader.tail" in repr(task)]
