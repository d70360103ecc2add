"""Reading a log: ranges, tails, and what a reader is told of what is gone."""

import random
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import (
    CannotRead,
    EntryPastEnd,
    InvalidRequest,
    PositionTruncated,
    Unavailable,
)
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position
from tests.engine.ledger.scripted import QUICK, turns
from tests.engine.log.yard import (
    SETTINGS,
    Tailing,
    ToldStore,
    Yard,
    bodies,
    led,
    numbered,
    whole,
)
from tests.simulation.virtual import virtually


async def test_a_late_tail_begins_each_ledger_at_its_first_entry() -> None:
    """The published defect: the number of the old ledger was carried into the next one."""
    yard = await Yard.of(3)
    log, writer = await led(yard)
    tailing = Tailing(log)
    await writer.append_many(numbered(0, 10))
    await tailing.until(10)
    await writer.roll()
    await writer.append_many(numbered(10, 30))
    await writer.roll()
    await writer.append_many(numbered(40, 5))
    assert await tailing.until(45) == numbered(0, 45)
    await tailing.stop()


async def test_a_tail_follows_while_entries_are_written_across_rolls_and_takeovers() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=7))
    tailing = Tailing(yard.log())
    for start in range(0, 100, 5):
        if start % 25 == 20:
            writer = await yard.log(replace(SETTINGS, roll_entries=7)).lead()
        await writer.append_many(numbered(start, 5))
    assert await tailing.until(100) == numbered(0, 100)
    assert tailing.found == await whole(log)
    await tailing.stop()


async def test_a_tail_ends_with_a_word_when_its_client_is_closed() -> None:
    yard = await Yard.of(3)
    _, writer = await led(yard)
    await writer.append(b"one")
    open_end, closed_end = yard.client(), yard.client()
    waiting = Tailing(yard.log(client=open_end))
    assert await waiting.until(1) == [b"one"]
    await open_end.close()
    with pytest.raises(InvalidRequest, match="was closed: open it again"):
        await waiting.until(2)
    await writer.close()
    waiting = Tailing(yard.log(client=closed_end))
    assert await waiting.until(1) == [b"one"]
    await turns()
    await closed_end.close()
    with pytest.raises(InvalidRequest, match="was closed: open it again"):
        await waiting.until(2)


async def test_a_tail_waits_at_a_closed_end_until_somebody_leads_again() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    await writer.close()
    tailing = Tailing(log)
    assert await tailing.until(1) == [b"one"]
    await turns()
    _, second = await led(yard)
    await second.append(b"two")
    assert await tailing.until(2) == [b"one", b"two"]
    await tailing.stop()


async def test_a_tail_whom_nobody_tells_of_changes_looks_for_itself() -> None:
    yard = await Yard.of(3)
    told = ToldStore(yard.tree.session())
    told.deaf = True
    tailing = Tailing(yard.log(store=told))
    await turns()
    _, writer = await led(yard)
    await writer.append(b"one")
    await writer.roll()
    await writer.append(b"two")
    assert await tailing.until(2) == [b"one", b"two"]
    await tailing.stop()


async def test_a_tail_of_a_log_that_nobody_has_begun_waits() -> None:
    yard = await Yard.of(3)
    tailing = Tailing(yard.log())
    await turns()
    _, writer = await led(yard)
    await writer.append(b"one")
    assert await tailing.until(1) == [b"one"]
    await tailing.stop()


async def test_a_tail_passes_over_ledgers_without_entries() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    for _ in range(3):
        await writer.roll()
    tailing = Tailing(log)
    await tailing.until(1)
    for _ in range(3):
        await writer.roll()
    await writer.append(b"two")
    assert await tailing.until(2) == [b"one", b"two"]
    await tailing.stop()


async def test_a_tail_may_begin_after_any_entry_that_is_kept() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=4))
    for start in range(0, 20, 2):
        await writer.append_many(numbered(start, 2))
    found = await whole(log)
    for index, (position, _) in enumerate(found[:-1]):
        tailing = Tailing(log, position)
        await tailing.until(len(found) - index - 1)
        assert tailing.found == found[index + 1 :]
        await tailing.stop()


async def test_a_tail_holds_out_while_no_bookie_answers_and_then_goes_on() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    tailing = Tailing(log)
    await writer.append(b"one")
    await tailing.until(1)
    for bookie in yard.bookies:
        bookie.mute = True
    await turns(200)
    for bookie in yard.bookies:
        bookie.mute = False
    await writer.append(b"two")
    assert await tailing.until(2) == [b"one", b"two"]
    await tailing.stop()


async def test_a_tail_that_is_overtaken_by_truncation_is_told_so() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append_many(numbered(0, 4))
    async with aclosing(log.tail(START)) as batches:
        first = await anext(batches)
        assert first.bodies == numbered(0, 4)
        await writer.append(b"entry 4")
        await writer.roll()
        last = await writer.append(b"entry 5")
        await writer.roll()
        await yard.log().truncate(last)
        with pytest.raises(PositionTruncated):
            async for batch in batches:
                assert batch.bodies == [b"entry 4"]


async def test_a_tail_whose_ledger_was_dropped_after_its_last_entry_goes_on() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    tailing = Tailing(log)
    position = await writer.append(b"one")
    await tailing.until(1)
    await writer.roll()
    await yard.log().truncate(position)
    await writer.append(b"two")
    assert await tailing.until(2) == [b"one", b"two"]
    await tailing.stop()


async def test_an_entry_that_no_bookie_can_tell_ends_a_tail_after_a_while() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    await writer.append(b"two")
    for bookie in yard.bookies:
        bookie.corrupt(writer.ledger, 1)
    tailing = Tailing(log)
    assert await tailing.until(1) == [b"one"]
    with pytest.raises(CannotRead):
        await tailing.until(2)


async def test_a_position_that_is_no_longer_kept_is_a_clear_error() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    await writer.roll()
    last = await writer.append(b"two")
    await log.truncate(last)
    with pytest.raises(PositionTruncated):
        await bodies(log, START)
    tailing = Tailing(log)
    with pytest.raises(PositionTruncated):
        await tailing.until(1)
    assert await bodies(log, Position(last.ledger, -1)) == [b"two"]


async def test_reading_past_the_end_is_refused() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    await writer.roll()
    last = await writer.append(b"two")
    for beyond in (
        Position(last.ledger - 1, 5),
        Position(last.ledger, 5),
        Position(last.ledger + 9, 0),
    ):
        with pytest.raises(EntryPastEnd):
            async for _ in log.read(START, beyond):
                pass
    assert [batch async for batch in log.read(last, last)] == []


async def test_a_position_that_only_a_bookie_that_is_down_may_know_is_not_past_the_end() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    last = await writer.append(b"one")
    yard.bookies[0].down = True
    with pytest.raises(Unavailable):
        async for _ in log.read(START, Position(last.ledger, 5)):
            pass


async def test_a_range_ends_where_it_was_told_to() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard, replace(SETTINGS, roll_entries=4))
    for start in range(0, 20, 2):
        await writer.append_many(numbered(start, 2))
    found = await whole(log)
    for low in range(0, 20, 3):
        for high in range(low, 20, 3):
            got = [
                body
                async for batch in log.read(found[low][0], found[high][0])
                for body in batch.bodies
            ]
            assert got == [body for _, body in found[low + 1 : high + 1]]


async def test_the_end_of_an_open_log_is_not_guessed_when_bookies_are_silent() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    for bookie in yard.bookies:
        bookie.down = True
    with pytest.raises(Unavailable):
        await log.end()


async def test_a_reader_finds_a_ledger_that_was_listed_after_its_last_look() -> None:
    yard = await Yard.of(3)
    reader = yard.log()
    assert await bodies(reader) == []
    _, writer = await led(yard)
    last = await writer.append(b"one")
    await turns()
    assert [batch.bodies async for batch in reader.read(START, last)] == [[b"one"]]


@given(st.randoms(use_true_random=False))
def test_tails_see_one_sequence_over_random_rolls_fences_and_takeovers(
    rng: random.Random,
) -> None:
    async def script() -> None:
        for expected, found in await _random_history(rng):
            assert found == expected

    virtually(script())


async def _random_history(
    rng: random.Random,
) -> list[tuple[list[tuple[Position, bytes]], list[tuple[Position, bytes]]]]:
    """What each reader should have seen, and what it saw."""
    yard = await Yard.of(rng.randint(1, 4))
    count = len(yard.bookies)
    client_settings = replace(QUICK, ensemble=min(count, 3), write_quorum=min(count, 3))
    client_settings = replace(client_settings, read_bytes_max=rng.choice([1, 40, 100_000]))
    settings = replace(SETTINGS, roll_entries=rng.choice([3, 10, 1_000]))

    def another() -> ReplicatedLog:
        return yard.log(settings, client=yard.client(client_settings))

    writer: LogWriter = await another().lead()
    tails = [Tailing(another())]
    written: list[tuple[Position, bytes]] = []
    for number in range(rng.randint(5, 40)):
        what = rng.random()
        if what < 0.1:
            writer = await another().lead()
        elif what < 0.2:
            await writer.roll()
        elif what < 0.3:
            await yard.fence(writer.ledger)
        elif what < 0.4 and len(tails) < 5:
            start = rng.choice([START, *(position for position, _ in written)])
            tails.append(Tailing(another(), start))
        entries = [b"%d %d" % (number, index) for index in range(rng.choice([1, 1, 2, 9]))]
        spans = await writer.append_many(entries)
        places = [position for span in spans for position in span.positions()]
        written += zip(places, entries, strict=True)
    seen = [(written, await whole(another()))]
    for tailing in tails:
        expected = [found for found in written if found[0] > tailing.after]
        await tailing.until(len(expected))
        await tailing.stop()
        seen.append((expected, tailing.found))
    return seen
