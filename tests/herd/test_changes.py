"""What those who follow a tablespace are told."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import date
from pathlib import Path

import msgspec
import pytest

from engine.errors import CannotRead, NoSuchLedger, NotFound, PositionTruncated
from engine.log import START, Position, ReplicatedLog, Span
from engine.log.log_reader import Batch
from engine.replica import entries as kinds
from herd import consumers
from herd.changes import Change, ChangeKind, CommittedTransaction, changes
from herd.commands import Erase, Write, encode_command
from herd.consumers import Consumer
from herd.errors import ChangesGone
from herd.reading_log import CommandReader, log_of
from herd.schema import Column, Table, key_of
from herd.types import TEXT, ColumnType, Kind, accepting
from tests.herd.checkpoint.test_building import Setup, change, opened, taken

LOG = log_of("farm")


async def told(
    setup: Setup, after: Position = START, tables: tuple[str, ...] = ()
) -> list[CommittedTransaction]:
    """All that was committed so far."""
    last = setup.space.replica.position
    following = changes(setup.client, "farm", after, last=last, tables=tables)
    async with aclosing(following):
        return [transaction async for transaction in following]


async def redefine(setup: Setup, **replaced: object) -> None:
    transaction = setup.space.begin()
    table = transaction.catalog.table("cow")
    changed = msgspec.structs.replace(table, **replaced)
    transaction.set_catalog(*transaction.catalog.with_table(changed))
    await transaction.commit()


async def test_transactions_come_in_order_with_all_that_they_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "one", 2: "two"})
        await change(setup, {2: "more"}, remove=range(1, 2))
        made, first, second = await told(setup)
        assert [one.kind for one in made.changes] == [ChangeKind.DEFINE]
        assert [(one.kind, one.row) for one in first.changes] == [
            (ChangeKind.PUT, {"id": 1, "name": "one"}),
            (ChangeKind.PUT, {"id": 2, "name": "two"}),
        ]
        assert [(one.kind, one.row) for one in second.changes] == [
            (ChangeKind.PUT, {"id": 2, "name": "more"}),
            (ChangeKind.DELETE, None),
        ]
        assert made.position < first.position < second.position


async def test_whoever_goes_on_after_a_position_misses_nothing_and_sees_nothing_twice(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        for turn in range(20):
            await change(setup, {turn: f"{turn}"})
            if turn in (5, 11):
                await taken(setup)
        whole = await told(setup)
        for place, transaction in enumerate(whole):
            assert await told(setup, transaction.position) == whole[place + 1 :]


async def test_a_row_is_told_with_the_definition_of_its_moment(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "old"})
        old = setup.table.columns
        await redefine(setup, columns=(old[0], Column(1, "title", TEXT)))
        await change(setup, {1: "new"})
        rows = [one.row for found in await told(setup) for one in found.changes if one.row]
        assert rows == [{"id": 1, "name": "old"}, {"id": 1, "title": "new"}]


async def test_a_table_that_logs_full_changes_tells_how_rows_were(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await redefine(setup, full_changes=True)
        setup = setup._replace(table=setup.space.catalog.table("cow"))
        await change(setup, {1: "a"})
        await change(setup, {1: "b"})
        await change(setup, {}, remove=range(1, 2))
        found = [one for transaction in (await told(setup))[2:] for one in transaction.changes]
        a, b = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
        assert [(one.kind, one.before, one.row) for one in found] == [
            (ChangeKind.INSERT, None, a),
            (ChangeKind.UPDATE, a, b),
            (ChangeKind.DELETE, b, None),
        ]


async def test_a_deleted_row_is_told_by_its_key_as_values(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "one"})
        await change(setup, {}, remove=range(1, 2))
        made, put, gone = [one for found in await told(setup) for one in found.changes]
        assert (made.kind, made.key_row) == (ChangeKind.DEFINE, None)
        assert put.key_row == {"id": 1}
        assert (gone.kind, gone.key_row, gone.row) == (ChangeKind.DELETE, {"id": 1}, None)


@pytest.mark.parametrize("kind", [NotFound, PositionTruncated, NoSuchLedger])
async def test_a_reader_that_is_too_far_behind_is_asked_to_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[NotFound]
) -> None:
    async def begin(self: Consumer, after: Position) -> None:
        raise kind("nothing is there")

    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        monkeypatch.setattr(Consumer, "begin", begin)
        with pytest.raises(ChangesGone, match="no longer kept") as raised:
            await told(setup)
        assert "read the tables as they are" in str(raised.value.hint)


def test_the_columns_of_a_key_are_told_as_rows_tell_them() -> None:
    day, kind = date(2026, 3, 1), ColumnType(Kind.DATE)
    columns = (Column(0, "name", TEXT), Column(1, "day", kind), Column(2, "title", TEXT))
    table = Table(1, "milking", 7, columns, (1, 0), next_column=3)
    key = key_of(table, ["Elsa", accepting(kind)(day), None])
    told = Change(table, ChangeKind.DELETE, key, None).key_row
    assert told == {"day": day, "name": "Elsa"}


async def test_only_the_tables_of_interest_are_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "one"})
        assert await told(setup, tables=("horse",)) == []
        assert len(await told(setup, tables=("COW",))) == 2


async def test_a_follower_waits_for_what_comes(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        following = changes(setup.client, "farm", setup.space.replica.position)
        async with aclosing(following):
            waiting = asyncio.ensure_future(anext(following))
            await change(setup, {7: "seven"})
            async with asyncio.timeout(20):
                transaction = await waiting
        assert transaction.changes[0].row == {"id": 7, "name": "seven"}


async def until_changed(setup: Setup, key: str, changed: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a key of the metadata store holds what is wanted."""
    moved = asyncio.Event()
    unwatch = setup.client.store.watch(key, moved.set)
    async with asyncio.timeout(20):
        while not await changed():
            await moved.wait()
            moved.clear()
    unwatch()


CHECKPOINTS = "/herd/tablespaces/farm/checkpoints"


async def test_what_is_kept_for_a_consumer_that_waits_is_kept_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await taken(setup)
        after = setup.space.replica.position
        following = changes(setup.client, "farm", after, consumer="etl", keep_ms=400)
        async with aclosing(following):
            waiting = asyncio.ensure_future(anext(following))
            first_ms: list[int] = []

            async def renewed() -> bool:
                pins = (await setup.checkpointer.list.get()).pins
                first_ms.extend(pin.expires_ms for pin in pins)
                return first_ms[-1:] > first_ms[:1]

            await until_changed(setup, CHECKPOINTS, renewed)
            pins = {pin.name: pin for pin in (await ReplicatedLog(setup.client, LOG).list()).pins}
            assert pins["changes:etl"].position <= after
            assert not waiting.done()
            await change(setup, {1: "late"})
            async with asyncio.timeout(20):
                assert (await waiting).changes[0].row == {"id": 1, "name": "late"}


async def test_who_follows_a_quiet_table_is_told_how_far_nothing_was_of_interest(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        log, quiet = ReplicatedLog(setup.client, LOG), ("horse",)
        await taken(setup)
        start = setup.space.replica.position
        following = changes(setup.client, "farm", start, tables=quiet, consumer="etl", keep_ms=400)
        async with aclosing(following):
            waiting = asyncio.ensure_future(anext(following))
            for number in range(3):
                await change(setup, {number: "busy"})
                await taken(setup)
            last = setup.space.replica.position
            told = START
            while told < last:
                async with asyncio.timeout(20):
                    told, rows = await waiting
                assert rows == ()
                waiting = asyncio.ensure_future(anext(following))

            async def moved() -> bool:
                return [pin.number for pin in (await setup.checkpointer.list.get()).pins] == [4]

            # Whoever asks for the next one has dealt with this one: so long nothing moves.
            await until_changed(setup, CHECKPOINTS, moved)
            pins = {pin.name: pin.position for pin in (await log.list()).pins}
            assert pins["changes:etl"] <= last
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        again = changes(setup.client, "farm", told, last=last, tables=quiet, consumer="etl")
        assert [transaction async for transaction in again] == []


def batch(*bodies: bytes) -> Batch:
    return Batch(Span(1, 0, len(bodies)), list(bodies))


def test_a_command_in_parts_comes_once_at_its_last_part() -> None:
    command = encode_command(Write([(b"\x02key", b"x" * 9_000_000)]))
    parts = kinds.encode_command(command, 1, None)
    assert len(parts) > 1
    reader = CommandReader()
    assert reader.take(batch(*parts[:-1])) == []
    found = reader.take(Batch(Span(1, 9, 1), [parts[-1]]))
    assert [position for position, _ in found] == [Position(1, 9)]


def test_parts_that_a_lost_leader_left_are_no_command() -> None:
    parts = kinds.encode_command(encode_command(Write([(b"\x02k", b"x" * 9_000_000)])), 1, None)
    term = kinds.encode_term(kinds.Term(2, 0, ""))
    whole = kinds.encode_command(encode_command(Erase(1, 10)), 1, None)
    reader = CommandReader()
    assert [one for _, one in reader.take(batch(parts[0], term, *whole))] == [Erase(1, 10)]
    with pytest.raises(CannotRead):
        reader.take(batch(parts[0], *whole))


def test_a_request_that_was_sent_twice_counts_once() -> None:
    request = kinds.Request(Position(1, 1), 5)
    again = kinds.encode_command(encode_command(Erase(1, 10)), 1, request)
    assert len(CommandReader().take(batch(*again, *again))) == 1


async def test_what_a_named_consumer_has_not_dealt_with_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        log = ReplicatedLog(setup.client, log_of("farm"))
        await change(setup, {1: "one"})
        await taken(setup)
        after = setup.space.replica.position
        await change(setup, {2: "two"})
        following = changes(setup.client, "farm", after, consumer="etl")
        assert (await anext(following)).changes[0].row == {"id": 2, "name": "two"}
        await following.aclose()
        for number in range(3, 6):
            await change(setup, {number: "more"})
            await taken(setup)
        checkpoints = await setup.checkpointer.list.get()
        assert [pin.name for pin in checkpoints.pins] == ["changes:etl"]
        assert checkpoints.kept[0].number == 1, "older than what is kept for nobody"
        pins = {pin.name: pin.position for pin in (await log.list()).pins}
        assert pins["changes:etl"] == checkpoints.kept[0].position
        rows = [one.changes[0].row for one in await told(setup, after)]
        assert [row["id"] for row in rows if row is not None] == [2, 3, 4, 5]
        await Consumer(setup.client, "farm", "etl", 0).forget()
        assert (await setup.checkpointer.list.get()).pins == ()
        assert [pin.name for pin in (await log.list()).pins] == ["checkpoints"]


async def test_what_is_kept_moves_on_with_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is always time to renew what is kept, however quick this machine is.
    monkeypatch.setattr(consumers, "_RENEWALS", 10**9)
    async with opened(tmp_path) as setup:
        start = setup.space.replica.position
        for number in range(1, 4):
            await change(setup, {number: "row"})
            await taken(setup)
        await change(setup, {4: "row"})
        following = changes(setup.client, "farm", start, consumer="etl", keep_ms=60_000)
        pinned = []
        async with aclosing(following):
            for _ in range(4):
                await anext(following)
                pins = (await setup.checkpointer.list.get()).pins
                pinned.append([pin.number for pin in pins])
        assert pinned == [[], [], [2], [3]], "the newest that it has dealt with all before of"
