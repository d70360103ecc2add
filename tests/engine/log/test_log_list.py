"""The value of a log's list, and the loop that changes it."""

import random

import msgspec
import pytest

from engine.errors import CannotRead, Deposed, FormatTooNew, InvalidRequest, MetadataUnavailable
from engine.log.log import ReplicatedLog
from engine.log.log_list import (
    FORMAT_MAJOR,
    HeldList,
    Listed,
    LogList,
    LogLists,
    Pin,
    check_name,
    decode_list,
    listing,
    raised_from,
)
from engine.log.position import START, Position
from engine.metadata.memory import FaultyStore, MemoryTree
from tests.engine.log.yard import LIST, Yard, bodies, led

NO_NAMES = ["", "/", "a//b", "/a", "a/", ".", "a/..", "ä", "a b", "a\n", "x" * 201]
EXAMPLE = LogList(
    epoch=3,
    listed=(Listed(7, 1_000, 41), Listed(9, 2_000)),
    first_ledger=2,
    dropped_through=Position(5, 12),
    pins=(Pin("reader", Position(7, 3), 60_000),),
    token=99,
)


def test_a_list_is_stored_as_documented() -> None:
    value = msgspec.msgpack.encode(EXAMPLE)
    assert msgspec.msgpack.decode(value) == {
        "epoch": 3,
        "listed": [[7, 1_000, 41], [9, 2_000, None]],
        "first_ledger": 2,
        "dropped_through": [5, 12],
        "pins": [["reader", [7, 3], 60_000]],
        "token": 99,
    }
    assert decode_list(value) == EXAMPLE


def test_a_list_of_a_newer_minor_version_is_read_and_of_a_newer_major_refused() -> None:
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(EXAMPLE))
    assert decode_list(msgspec.msgpack.encode({**known, "unheard of": 1})) == EXAMPLE
    with pytest.raises(FormatTooNew):
        decode_list(msgspec.msgpack.encode({"format_major": FORMAT_MAJOR + 1, "epoch": "three"}))


@pytest.mark.parametrize("value", [b"", b"\xff", msgspec.msgpack.encode({"epoch": "three"})])
def test_a_damaged_list_is_not_an_empty_one(value: bytes) -> None:
    with pytest.raises(CannotRead):
        decode_list(value)


async def test_a_log_of_a_newer_version_is_left_alone() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    found = await yard.store.get(LIST)
    assert found is not None
    newer = msgspec.msgpack.decode(found.value) | {"format_major": FORMAT_MAJOR + 1}
    await yard.store.set(LIST, msgspec.msgpack.encode(newer), found.version)
    with pytest.raises(FormatTooNew):
        await yard.log().lead()
    with pytest.raises(FormatTooNew):
        await bodies(log)
    assert isinstance(await writer.ended(), FormatTooNew)


@pytest.mark.parametrize("name", ["cows", "a", "herd/cows", "A-b_c.d/9", "-", "x" * 200])
def test_names_of_logs(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    [*NO_NAMES, "list", "a/leader", "snapshot/a", "a/replicas/b"],
)
async def test_what_is_no_name_of_a_log_is_refused_at_once(name: str) -> None:
    yard = await Yard.of(1)
    with pytest.raises(InvalidRequest):
        ReplicatedLog(yard.client(), name)


async def test_an_epoch_that_somebody_else_has_raised_is_not_raised_again() -> None:
    tree = MemoryTree("cluster")
    faulty = FaultyStore(tree.session())
    one = LogLists(faulty, "cows", random.Random(1))
    other = LogLists(tree.session(), "cows", random.Random(2))

    async def intrude() -> None:
        held = await other.read()
        await other.update(held, raised_from(held.list.epoch))

    for epoch in (0, 1):
        held = await one.read()
        assert held.list.epoch == epoch
        faulty.before_write(intrude)
        with pytest.raises(Deposed):
            await one.update(held, raised_from(epoch))
        assert (await one.read()).list.epoch == epoch + 1


async def test_an_epoch_is_raised_even_if_a_pin_was_added_meanwhile() -> None:
    tree = MemoryTree("cluster")
    faulty = FaultyStore(tree.session())
    one = LogLists(faulty, "cows", random.Random(1))
    other = LogLists(tree.session(), "cows", random.Random(2))
    pin = Pin("reader", START, 60_000)

    async def put() -> None:
        held = await other.read()
        await other.update(held, lambda now: msgspec.structs.replace(now, pins=(pin,)))

    faulty.before_write(put)
    held = await one.update(await one.read(), raised_from(0))
    assert (held.list.epoch, held.list.pins) == (1, (pin,))


async def test_a_change_whose_request_was_lost_is_made_once() -> None:
    faulty = FaultyStore(MemoryTree("cluster").session())
    lists = LogLists(faulty, "cows", random.Random(1))
    faulty.lose_request()
    held = await lists.update(await lists.read(), raised_from(0))
    faulty.lose_reply()
    held = await lists.update(held, raised_from(1))
    assert held.list.epoch == 2 and held == await lists.read_fresh()


async def test_a_list_that_cannot_be_settled_is_given_up() -> None:
    faulty = FaultyStore(MemoryTree("cluster").session())
    lists = LogLists(faulty, "cows", random.Random(1))
    for _ in range(100):
        faulty.lose_request()
    with pytest.raises(MetadataUnavailable):
        await lists.update(await lists.read(), raised_from(0))


async def test_a_ledger_is_listed_once_and_only_under_its_epoch() -> None:
    lists = LogLists(MemoryTree("cluster").session(), "cows", random.Random(1))
    held = await lists.update(HeldList(LogList(), None), raised_from(0))
    held = await lists.update(held, listing(1, 5, None, 1_000))
    again = await lists.update(held, listing(1, 5, None, 1_000))
    assert again == held and held.list.ledgers == (5,)
    held = await lists.update(held, raised_from(1))
    with pytest.raises(Deposed):
        await lists.update(held, listing(1, 6, 3, 1_000))


def test_a_ledger_is_listed_behind_the_end_of_the_one_before() -> None:
    first = LogList(epoch=1).with_ledger(5, 1_000, None)
    second = first.with_ledger(6, 2_000, 17)
    assert second.listed == (Listed(5, 1_000, 17), Listed(6, 2_000))
    assert second.last_before == Position(5, 17)
    with pytest.raises(AssertionError):
        first.with_ledger(6, 2_000, None)
    with pytest.raises(AssertionError):
        second.with_ledger(4, 3_000, 0)


def test_an_empty_list_has_the_whole_history() -> None:
    empty = LogList()
    assert empty.full_history and empty.keeps_after(START)
    assert empty.first_position_kept == empty.last_before == START
    assert not EXAMPLE.full_history
    assert EXAMPLE.first_position_kept == Position(7, 0)
    assert EXAMPLE.keeps_after(Position(5, 12)) and not EXAMPLE.keeps_after(Position(5, 11))
