"""Entries of ledgers and logs in spans."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine import place as places
from engine import spans as module
from engine.errors import EngineError, InvalidRequest, NoSuchLedger, NotFound, PositionTruncated
from engine.ledger.writer import LedgerWriter
from engine.log import Position, ReplicatedLog, Span
from engine.place import HeldClient, Place, held_client
from engine.run import NO_ENTRY
from engine.spans import Entries, Follower


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldClient]:
    place = Place(url=str(tmp_path))
    asyncio.run(_make(tmp_path))
    yield held_client(place)
    places.let_go(place)


async def _make(folder: Path) -> None:
    async with engine.open(folder):
        """A look makes no store: this does."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path))


def ledger(held: HeldClient, bodies: list[bytes], *, close: bool) -> LedgerWriter:
    async def write() -> LedgerWriter:
        writer = await held.client.create_ledger()
        for body in bodies:
            await writer.append(body)
        if close:
            await writer.close()
        return writer

    return held.run(write)


def log(held: HeldClient, *ledgers: list[bytes]) -> list[Position]:
    """A log of so many ledgers; where its entries are."""

    async def write() -> list[Position]:
        written = []
        writer = await ReplicatedLog(held.client, "orders").lead()
        for number, bodies in enumerate(ledgers):
            if number:
                await writer.roll()
            for body in bodies:
                written.append(await writer.append(body))
        await writer.close()
        return written

    return held.run(write)


def cut_off(held: HeldClient) -> None:
    async def cut() -> None:
        orders = ReplicatedLog(held.client, "orders")
        await orders.truncate(await orders.end())

    held.run(cut)


def read(entries: Entries, start: Position, end: Position) -> list[tuple[int, int, bytes]]:
    return [
        (told.ledger, told.first + place, body)
        for span in entries.spans(start, end)
        for told, bodies in entries.read(span)
        for place, body in enumerate(bodies)
    ]


@pytest.mark.parametrize("close", [True, False])
def test_spans_of_a_ledger_have_each_entry_once_and_none_past_the_last_confirmed(
    held: HeldClient, place: Place, close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SPAN_BYTES", 30)
    monkeypatch.setattr(module, "_SPAN_ENTRIES", 7)
    bodies = [b"%d" % number for number in range(40)]
    number = ledger(held, bodies, close=close).ledger_id
    entries = Entries(place=place, ledger=number)
    start, end = entries.position("earliest"), entries.position("latest")
    assert (start, end) == (Position(number, NO_ENTRY), Position(number, 39))
    assert len(entries.spans(start, end)) > 2
    assert read(entries, start, end) == [(number, at, body) for at, body in enumerate(bodies)]
    assert [at for _, at, _ in read(entries, entries.position("30"), end)] == [*range(31, 40)]
    assert entries.position(f"{number}/30") == entries.position("30")
    assert read(entries, end, end) == []


def test_spans_of_a_log_go_on_across_its_ledgers(held: HeldClient, place: Place) -> None:
    places_of = log(held, [b"a", b"b", b"c"], [b"d"], [b"e", b"f"])
    entries = Entries(place=place, log="orders")
    start, end = entries.position("earliest"), entries.position("latest")
    assert end == places_of[-1]
    told = read(entries, start, end)
    assert [Position(*at) for *at, _ in told] == places_of
    assert b"".join(body for *_, body in told) == b"abcdef"
    tail = read(entries, places_of[1], places_of[4])
    assert b"".join(body for *_, body in tail) == b"cde"


def test_a_batch_has_at_most_so_many_entries_across_ledgers(held: HeldClient, place: Place) -> None:
    at = log(held, [b"a", b"b", b"c"], [b"d"], [b"e", b"f"])
    entries = Entries(place=place, log="orders")
    follower = Follower(entries)
    start = entries.position("earliest")
    assert follower.latest(start, 2) == at[1]
    assert follower.latest(at[1], 2) == at[3]
    assert follower.latest(at[3], 2) == at[5]
    assert follower.latest(at[3], None) == at[5]
    assert follower.latest(at[5], 2) == at[5]


def test_a_stream_goes_on_with_what_is_confirmed_later(held: HeldClient, place: Place) -> None:
    writer = ledger(held, [b"a"], close=False)
    entries = Entries(place=place, ledger=writer.ledger_id)
    follower = Follower(entries)
    start = entries.position("latest")
    assert follower.latest(start, None) == start

    async def append() -> None:
        await writer.append(b"b")
        await writer.close()

    held.run(append)
    end = follower.latest(start, None)
    assert read(entries, start, end) == [(writer.ledger_id, 1, b"b")]


def test_nothing_after_the_target_of_a_run_is_told(held: HeldClient, place: Place) -> None:
    writer = ledger(held, [b"a"], close=False)
    entries = Entries(place=place, ledger=writer.ledger_id)
    follower = Follower(entries)
    follower.stop_at_end()
    target = entries.position("latest")
    held.run(lambda: _append(writer))
    assert entries.position("latest") > target
    assert follower.latest(entries.position("earliest"), None) == target
    assert follower.latest(target, None) == target


async def _append(writer: LedgerWriter) -> None:
    await writer.append(b"later")
    await writer.close()


def test_a_ledger_that_was_deleted_is_an_error_and_no_end(held: HeldClient, place: Place) -> None:
    number = ledger(held, [b"a"], close=True).ledger_id
    entries = Entries(place=place, ledger=number)
    start, end = entries.position("earliest"), entries.position("latest")
    [span] = entries.spans(start, end)
    held.run(lambda: held.client.delete_ledger(number))
    with pytest.raises(NoSuchLedger, match=f"{number}"):
        list(entries.read(span))
    with pytest.raises(NoSuchLedger, match=f"{number}"):
        entries.position("earliest")
    with pytest.raises(NoSuchLedger, match=f"{number}"):
        Follower(entries).latest(start, None)


def test_a_log_that_was_cut_off_is_an_error_and_no_end(held: HeldClient, place: Place) -> None:
    at = log(held, [b"a", b"b"], [b"c"])
    entries = Entries(place=place, log="orders")
    start, end = entries.position("earliest"), entries.position("latest")
    first = entries.spans(start, end)[0]
    cut_off(held)
    assert entries.position("earliest") == at[1]
    with pytest.raises(PositionTruncated, match="keeps nothing up to"):
        entries.spans(start, end)
    with pytest.raises(PositionTruncated, match="keeps nothing up to"):
        list(entries.read(first))
    with pytest.raises(PositionTruncated, match="keeps nothing up to"):
        Follower(entries).latest(start, None)


def test_what_a_stream_has_not_dealt_with_is_kept(held: HeldClient, place: Place) -> None:
    at = log(held, [b"a", b"b"], [b"c"], [b"d"])
    entries = Entries(place=place, log="orders")
    start = entries.position("earliest")
    follower = Follower(entries)
    assert follower.latest(start, 2) == at[1]
    cut_off(held)
    assert entries.position("earliest") == start
    follower.commit(at[1])
    cut_off(held)
    assert entries.position("earliest") == at[1]
    follower.close()
    cut_off(held)
    assert entries.position("earliest") == at[2]


def test_what_a_consumer_with_a_name_needs_is_kept_when_it_ends(
    held: HeldClient, place: Place
) -> None:
    log(held, [b"a"], [b"b"])
    entries = Entries(place=place, log="orders")
    start = entries.position("earliest")
    follower = Follower(entries, "audit")
    follower.latest(start, 1)
    follower.close()
    cut_off(held)
    assert entries.position("earliest") == start


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("soon", InvalidRequest, "'soon' is no position"),
        ("3/x", InvalidRequest, "'3/x' is no position"),
        ("99999/0", InvalidRequest, "99999/0 is past the last entry"),
        ("0/-5", InvalidRequest, "no position of"),
    ],
)
def test_what_is_no_position_is_refused(
    held: HeldClient, place: Place, text: str, kind: type[EngineError], message: str
) -> None:
    log(held, [b"a"])
    with pytest.raises(kind, match=message):
        Entries(place=place, log="orders").position(text)


def test_a_log_that_is_not_there_is_named(held: HeldClient, place: Place) -> None:
    with pytest.raises(NotFound, match="there is no log order"):
        Entries(place=place, log="order").position("latest")


def test_a_span_past_what_is_confirmed_is_never_read(held: HeldClient, place: Place) -> None:
    number = ledger(held, [b"a"], close=True).ledger_id
    with pytest.raises(InvalidRequest, match="past the last one that may be read"):
        list(Entries(place=place, ledger=number).read(Span(number, 0, 2)))
