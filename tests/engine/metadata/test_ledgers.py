"""Ledger metadata: the loop that changes it, and what it never allows."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import FormatTooNew, KeyExists, MetadataUnavailable, NoSuchLedger
from engine.metadata.ledgers import (
    FORMAT_MAJOR,
    Fragment,
    LedgerMetadata,
    Ledgers,
    State,
    decode_metadata,
)
from engine.metadata.memory import FaultyStore, MemoryTree


def metadata(ledger_id: int = 7, **fields: Any) -> LedgerMetadata:
    """A new ledger's metadata on three bookies."""
    made: LedgerMetadata = LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ("a", "b", "c")),),
        key_hash=b"k" * 32,
        created_ms=1,
        token=0,
    )
    return msgspec.structs.replace(made, **fields)


def close_at(current: LedgerMetadata, last_entry: int) -> LedgerMetadata | None:
    """A recoverer's change: close, unless somebody has."""
    if current.closed:
        return None
    return msgspec.structs.replace(
        current, state=State.CLOSED, last_entry=last_entry, length=10 * (last_entry + 1)
    )


class Cluster:
    """One tree, and clients of it whose writes fail on command."""

    def __init__(self) -> None:
        self.tree = MemoryTree("cluster")
        self.seed = 0

    def client(self) -> tuple[Ledgers, FaultyStore]:
        self.seed += 1
        store = FaultyStore(self.tree.session())
        return Ledgers(store, random.Random(self.seed)), store


async def test_a_created_ledger_is_read_back() -> None:
    ledgers, _ = Cluster().client()
    held = await ledgers.create(metadata(custom={"app": b"herd"}))
    assert await ledgers.read(7) == held
    assert await ledgers.ids() == [7]
    assert held.metadata.custom == {"app": b"herd"}


async def test_an_unknown_ledger_is_not_found() -> None:
    ledgers, _ = Cluster().client()
    with pytest.raises(NoSuchLedger):
        await ledgers.read(7)
    with pytest.raises(NoSuchLedger):
        await ledgers.delete(7)


async def test_ids_are_listed_as_numbers_and_never_given_twice() -> None:
    ledgers, _ = Cluster().client()
    for ledger_id in (100, 9, 20):
        await ledgers.create(metadata(ledger_id))
    assert await ledgers.ids() == [9, 20, 100]
    first = await ledgers.new_id()
    assert await ledgers.new_id() > first


async def test_a_creation_whose_reply_was_lost_is_recognised_by_its_token() -> None:
    ledgers, store = Cluster().client()
    store.lose_reply()
    held = await ledgers.create(metadata())
    assert store.faults_left == 0
    assert await ledgers.read(7) == held


async def test_a_creation_whose_request_was_lost_is_made_again() -> None:
    ledgers, store = Cluster().client()
    store.lose_request()
    held = await ledgers.create(metadata())
    assert await ledgers.read(7) == held


async def test_a_creation_that_meets_another_ledger_of_its_id_is_refused() -> None:
    cluster = Cluster()
    (mine, store), (other, _) = cluster.client(), cluster.client()
    store.before_write(lambda: other.create(metadata(custom={"whose": b"the other's"})))
    with pytest.raises(KeyExists):
        await mine.create(metadata(custom={"whose": b"mine"}))
    store.lose_reply()
    with pytest.raises(KeyExists):
        await mine.create(metadata(custom={"whose": b"mine"}))
    assert (await mine.read(7)).metadata.custom == {"whose": b"the other's"}


async def test_an_update_whose_reply_was_lost_is_made_once() -> None:
    ledgers, store = Cluster().client()
    held = await ledgers.create(metadata())
    asked: list[State] = []

    def change(current: LedgerMetadata) -> LedgerMetadata | None:
        asked.append(current.state)
        return close_at(current, 4)

    store.lose_reply()
    closed = await ledgers.update(held, change)
    assert asked == [State.OPEN]
    assert closed.metadata.last_entry == 4
    assert closed == await ledgers.read(7)
    assert closed.version == held.version + 1


async def test_an_update_whose_request_was_lost_is_made_again() -> None:
    ledgers, store = Cluster().client()
    held = await ledgers.create(metadata())
    store.lose_request()
    closed = await ledgers.update(held, lambda current: close_at(current, 4))
    assert closed == await ledgers.read(7)
    assert closed.metadata.closed


async def test_a_conflict_is_decided_anew_on_the_fresh_value() -> None:
    cluster = Cluster()
    (mine, store), (other, _) = cluster.client(), cluster.client()
    held = await mine.create(metadata())
    store.before_write(
        lambda: other.update(held, lambda now: now.with_fragment(256, ("a", "b", "d")))
    )
    updated = await mine.update(held, lambda now: close_at(now, 300))
    assert [fragment.first for fragment in updated.metadata.fragments] == [0, 256]
    assert updated.metadata.last_entry == 300
    assert updated == await other.read(7)


async def test_of_two_that_close_both_report_the_same_end() -> None:
    cluster = Cluster()
    (mine, store), (other, _) = cluster.client(), cluster.client()
    held = await mine.create(metadata())
    store.before_write(lambda: other.update(held, lambda now: close_at(now, 9)))
    closed = await mine.update(held, lambda now: close_at(now, 12))
    assert closed.metadata.last_entry == 9
    assert closed == await mine.read(7)


async def test_a_lost_reply_behind_which_another_has_written_is_decided_anew() -> None:
    """The own token is gone, so the change is asked about the value that stands there now."""
    cluster = Cluster()
    (mine, store), (other, _) = cluster.client(), cluster.client()
    held = await mine.create(metadata())

    async def other_closes() -> None:
        await other.update(await other.read(7), lambda now: close_at(now, 9))

    def begin_recovery(now: LedgerMetadata) -> LedgerMetadata | None:
        if now.state is not State.OPEN:
            return None
        return msgspec.structs.replace(now, state=State.IN_RECOVERY)

    store.lose_reply(then=other_closes)
    result = await mine.update(held, begin_recovery)
    assert result.metadata.closed and result.metadata.last_entry == 9
    assert result.version == held.version + 2


async def test_an_update_that_is_not_wanted_writes_nothing() -> None:
    ledgers, _ = Cluster().client()
    held = await ledgers.create(metadata())
    assert await ledgers.update(held, lambda current: None) == held
    assert (await ledgers.read(7)).version == held.version


async def test_a_change_that_raises_gives_up_and_writes_nothing() -> None:
    ledgers, _ = Cluster().client()
    held = await ledgers.create(metadata())

    def refuse(current: LedgerMetadata) -> LedgerMetadata | None:
        raise NoSuchLedger("given up")

    with pytest.raises(NoSuchLedger):
        await ledgers.update(held, refuse)
    assert (await ledgers.read(7)).version == held.version


async def test_an_update_of_a_deleted_ledger_finds_none() -> None:
    ledgers, _ = Cluster().client()
    held = await ledgers.create(metadata())
    await ledgers.delete(7)
    with pytest.raises(NoSuchLedger):
        await ledgers.update(held, lambda current: close_at(current, 1))


async def test_a_store_that_never_answers_ends_in_unavailable_or_conflict() -> None:
    ledgers, store = Cluster().client()
    for _ in range(200):
        store.lose_request()
    with pytest.raises(MetadataUnavailable):
        await ledgers.create(metadata())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.CLOSED, State.OPEN),
        (State.CLOSED, State.IN_RECOVERY),
        (State.IN_RECOVERY, State.OPEN),
    ],
)
async def test_a_state_never_goes_back(before: State, after: State) -> None:
    ledgers, _ = Cluster().client()
    ends = {"last_entry": 3, "length": 9} if before is State.CLOSED else {}
    held = await ledgers.create(metadata(state=before, **ends))

    def back(current: LedgerMetadata) -> LedgerMetadata:
        return msgspec.structs.replace(current, state=after, last_entry=None, length=None)

    with pytest.raises(AssertionError):
        await ledgers.update(held, back)
    assert await ledgers.read(7) == held


async def test_the_end_of_a_closed_ledger_never_changes() -> None:
    ledgers, _ = Cluster().client()
    held = await ledgers.create(metadata(state=State.CLOSED, last_entry=3, length=9))
    with pytest.raises(AssertionError):
        await ledgers.update(held, lambda now: msgspec.structs.replace(now, last_entry=4))
    assert await ledgers.read(7) == held


async def test_repairs_are_asked_for_once_and_go_with_the_ledger() -> None:
    ledgers, _ = Cluster().client()
    for ledger_id in (12, 7):
        await ledgers.create(metadata(ledger_id))
        await ledgers.request_repair(ledger_id, "a replica is missing")
        await ledgers.request_repair(ledger_id, "again")
    assert await ledgers.repairs() == [7, 12]
    await ledgers.delete(7)
    assert await ledgers.repairs() == [12]


async def test_a_watch_tells_when_somebody_else_changes_the_ledger() -> None:
    cluster = Cluster()
    (mine, _), (other, _) = cluster.client(), cluster.client()
    held = await mine.create(metadata())
    changed = asyncio.Event()
    end = mine.watch(7, changed.set)
    await other.update(held, lambda now: close_at(now, 1))
    assert await changed.wait()
    end()


def test_a_newer_format_is_refused() -> None:
    newer = msgspec.msgpack.encode(metadata(format_major=FORMAT_MAJOR + 1))
    with pytest.raises(FormatTooNew):
        decode_metadata(newer)


def test_a_field_of_a_newer_minor_format_is_passed_over() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(metadata()))
    fields["colour"] = "brown"
    assert decode_metadata(msgspec.msgpack.encode(fields)) == metadata()


@pytest.mark.parametrize(
    "fields",
    [
        {"write_quorum": 4},
        {"ack_quorum": 0},
        {"state": State.CLOSED},
        {"last_entry": 3},
        {"state": State.CLOSED, "last_entry": 3},
        {"state": State.CLOSED, "last_entry": -2, "length": 0},
        {"fragments": (Fragment(1, ("a", "b", "c")),)},
        {"fragments": (Fragment(0, ("a", "b", "b")),)},
        {"fragments": (Fragment(0, ("a", "b")),)},
        {"fragments": (Fragment(0, ("a", "b", "c")), Fragment(0, ("a", "b", "d")))},
    ],
)
def test_metadata_that_breaks_a_rule_is_never_made(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        metadata(**fields)


_bookie_ids = st.text("abcdef0123456789", min_size=1, max_size=8)


@st.composite
def _any_metadata(draw: st.DrawFn) -> LedgerMetadata:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    ensembles = st.lists(
        _bookie_ids, min_size=ensemble_size, max_size=ensemble_size, unique=True
    ).map(tuple)
    firsts = sorted(draw(st.sets(st.integers(1, 2**62), max_size=4)))
    closed = draw(st.booleans())
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, 2**63 - 1)),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        fragments=tuple(Fragment(first, draw(ensembles)) for first in (0, *firsts)),
        key_hash=draw(st.binary(min_size=32, max_size=32)),
        created_ms=draw(st.integers(0, 2**50)),
        token=draw(st.integers(0, 2**63 - 1)),
        state=State.CLOSED if closed else draw(st.sampled_from([State.OPEN, State.IN_RECOVERY])),
        last_entry=draw(st.integers(-1, 2**62)) if closed else None,
        length=draw(st.integers(0, 2**62)) if closed else None,
        degraded=draw(st.booleans()),
        custom=draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3)),
    )


@given(_any_metadata())
def test_any_metadata_is_the_same_after_encoding(made: LedgerMetadata) -> None:
    assert decode_metadata(msgspec.msgpack.encode(made)) == made


@given(_any_metadata(), st.integers(0, 2**62))
def test_a_write_set_is_write_quorum_different_indexes_and_one_a_stripe(
    made: LedgerMetadata, entry_id: int
) -> None:
    indexes = made.write_set(entry_id)
    assert len(set(indexes)) == made.write_quorum
    assert all(0 <= index < made.ensemble_size for index in indexes)
    stripe_start = entry_id - entry_id % made.stripe_entries
    assert made.write_set(stripe_start) == indexes
    assert made.write_set(stripe_start + made.stripe_entries - 1) == indexes


@given(_any_metadata(), st.integers(0, 2**62))
def test_an_entry_lies_in_the_last_fragment_that_starts_at_or_before_it(
    made: LedgerMetadata, entry_id: int
) -> None:
    fragment = made.fragment_of(entry_id)
    assert fragment.first <= entry_id
    assert not any(fragment.first < other.first <= entry_id for other in made.fragments)


def test_a_fragment_at_the_last_ones_start_replaces_it() -> None:
    changed = metadata().with_fragment(0, ("a", "b", "d")).with_fragment(9, ("a", "e", "d"))
    assert changed.fragments == (Fragment(0, ("a", "b", "d")), Fragment(9, ("a", "e", "d")))
    assert changed.with_fragment(9, ("x", "e", "d")).fragments[1].ensemble == ("x", "e", "d")
    assert changed.bookies() == {"a", "b", "d", "e"}
    with pytest.raises(AssertionError):
        changed.with_fragment(5, ("a", "b", "c"))
