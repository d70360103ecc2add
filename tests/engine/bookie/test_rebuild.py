"""Metadata made again from facts: what is certain comes back, nothing is guessed."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bookie.rebuild import Remains, Unfit, rebuild_ledger, rebuild_metadata
from engine.errors import CannotRead, MetadataUnavailable, Unavailable
from engine.log.log_list import LogList, LogLists
from engine.log.sweeping import PURPOSE_LOG, marks_of
from engine.metadata.ledgers import Fragment, LedgerMetadata, Ledgers, State
from engine.metadata.lost_logs import forget_lost, lost_logs
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.metadata.restoring import MARK, check_not_under_way
from engine.transport.contract import LedgerFacts

ABC = ("a", "b", "c")
ABD = ("a", "b", "d")
ABE = ("a", "b", "e")


def facts_of(
    ledger_id: int, first: int = 0, ensemble: tuple[str, ...] = ABC, **changes: object
) -> LedgerFacts:
    facts = LedgerFacts(ledger_id, 3, 3, 2, 256, b"key-hash", 12, {"app": b"cows"}, first, ensemble)
    return msgspec.structs.replace(facts, **changes)


def remains_of(*facts: LedgerFacts, last_held: int = -1) -> Remains:
    remains = Remains()
    if last_held >= 0:
        remains.hold(0, last_held)
    for one in facts:
        remains.learn(one)
    return remains


def rebuilt(remains: dict[str, Remains]) -> LedgerMetadata:
    metadata = rebuild_ledger(7, remains)
    assert isinstance(metadata, LedgerMetadata)
    return metadata


def reason(remains: dict[str, Remains]) -> str:
    unfit = rebuild_ledger(7, remains)
    assert isinstance(unfit, Unfit)
    return unfit.reason


def test_a_ledger_whose_close_nobody_remembers_comes_back_open() -> None:
    metadata = rebuilt({"a": remains_of(facts_of(7), last_held=99)})
    assert (metadata.state, metadata.last_entry) == (State.OPEN, None)
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
    assert (metadata.key_hash, metadata.created_ms) == (b"key-hash", 12)
    assert metadata.custom == {"app": b"cows"} and metadata.fragments == (Fragment(0, ABC),)


def test_one_folder_that_remembers_the_close_is_enough() -> None:
    closed = facts_of(7, closed_last=41, closed_length=4_100)
    metadata = rebuilt({"a": remains_of(facts_of(7)), "b": remains_of(facts_of(7), closed)})
    assert (metadata.state, metadata.last_entry, metadata.length) == (State.CLOSED, 41, 4_100)


def test_a_ledger_closed_empty_comes_back_closed() -> None:
    metadata = rebuilt({"a": remains_of(facts_of(7, closed_last=-1))})
    assert (metadata.state, metadata.last_entry, metadata.length) == (State.CLOSED, -1, 0)


def test_fragments_of_all_folders_are_put_in_order() -> None:
    metadata = rebuilt(
        {
            "d": remains_of(facts_of(7, 10, ABD)),
            "a": remains_of(facts_of(7), facts_of(7, 10, ABD), facts_of(7, 20, ABE)),
            "c": remains_of(facts_of(7)),
        }
    )
    assert metadata.fragments == (Fragment(0, ABC), Fragment(10, ABD), Fragment(20, ABE))


def test_an_ensemble_changed_before_its_first_confirmation_is_outdated() -> None:
    metadata = rebuilt(
        {
            "c": remains_of(facts_of(7), last_held=5),
            "a": remains_of(facts_of(7), facts_of(7, 0, ABD), last_held=5),
        }
    )
    assert metadata.fragments == (Fragment(0, ABD),)


def test_of_two_ensembles_that_nobody_ordered_the_one_that_holds_most_is_taken() -> None:
    metadata = rebuilt(
        {
            "a": remains_of(facts_of(7), last_held=5),
            "b": remains_of(last_held=5),
            "c": remains_of(facts_of(7)),
            "d": remains_of(facts_of(7, 0, ABD), last_held=5),
        }
    )
    assert metadata.fragments == (Fragment(0, ABD),)


def test_a_deleted_ledger_stays_away_whatever_others_remember() -> None:
    gone = Remains(deleted=True)
    assert rebuild_ledger(7, {"a": remains_of(facts_of(7), last_held=9), "b": gone}) is None


def test_missing_or_contradicting_facts_are_reported_and_not_guessed() -> None:
    assert "no folder remembers its quorums" in reason({"a": remains_of(last_held=4)})
    assert "entries 0 to 9" in reason({"d": remains_of(facts_of(7, 10, ABD))})
    other_key = facts_of(7, key_hash=b"other")
    assert "disagree" in reason({"a": remains_of(facts_of(7)), "b": remains_of(other_key)})
    ends = [facts_of(7, closed_last=last) for last in (4, 5)]
    assert "its end" in reason({"a": remains_of(ends[0]), "b": remains_of(ends[1])})


async def test_metadata_that_is_there_is_never_replaced() -> None:
    ledgers = Ledgers(MemoryTree("meadow").session(), random.Random(1))
    metadata = rebuilt({"a": remains_of(facts_of(7))})
    held = await ledgers.create(msgspec.structs.replace(metadata, custom={"mine": b"1"}))
    folders = {"a": {7: remains_of(facts_of(7)), 9: remains_of(facts_of(9))}}
    report = await rebuild_metadata(folders, ledgers.store, random.Random(2))
    assert (report.restored, report.kept) == ((9,), (7,))
    assert (await ledgers.read(7)).metadata == held.metadata
    again = await rebuild_metadata(folders, ledgers.store, random.Random(3))
    assert (again.restored, again.kept) == ((), (7, 9))


class CutStore(MemoryStore):
    """A store that is lost for its writer behind so many of its writes."""

    left = 1_000_000

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        if self.left <= 0:
            raise MetadataUnavailable("the machine lost power")
        self.left -= 1
        return await super().create(key, value, ephemeral=ephemeral)


async def test_an_interrupted_rebuild_is_marked_and_can_be_continued() -> None:
    folders = {"a": {number: remains_of(facts_of(number)) for number in (7, 8, 9)}}
    whole = [7, 8, 9]
    for writes in range(1, 4):
        tree = MemoryTree("meadow")
        store = CutStore(tree, 9)
        store.left = writes
        with pytest.raises(MetadataUnavailable):
            await rebuild_metadata(folders, store, random.Random(1))
        assert await Ledgers(tree.session(), random.Random(1)).ids() == whole[: writes - 1]
        with pytest.raises(Unavailable, match="rebuild-metadata"):
            await check_not_under_way(tree.session())
        again = await rebuild_metadata(folders, tree.session(), random.Random(2))
        assert [*again.kept, *again.restored] == whole
        await check_not_under_way(tree.session())


async def test_a_rebuild_keeps_the_mark_of_a_restore_by_an_earlier_program() -> None:
    folders = {"a": {number: remains_of(facts_of(number)) for number in (7, 8)}}
    tree = MemoryTree("meadow")
    other = tree.session()
    # That program has no `under_way`, and goes on with its restore only if the mark is there.
    value = msgspec.msgpack.encode({"cluster_id": "old", "number": 4, "cut_ms": 5})
    await other.create(MARK, value)
    store = CutStore(tree, 9)
    store.left = 1
    with pytest.raises(MetadataUnavailable):
        await rebuild_metadata(folders, store, random.Random(1))
    with pytest.raises(Unavailable, match="rebuild-metadata"):
        await check_not_under_way(other)
    await rebuild_metadata(folders, other, random.Random(2))
    found = await other.get(MARK)
    assert found is not None and msgspec.msgpack.decode(found.value) == msgspec.msgpack.decode(
        value
    )


def log_facts(ledger_id: int, name: str) -> LedgerFacts:
    return facts_of(ledger_id, custom=marks_of(name, PURPOSE_LOG, 3))


async def test_a_log_that_comes_back_without_its_list_is_begun_anew_by_nobody() -> None:
    tree = MemoryTree("meadow")
    store = tree.session()
    await store.create("/logs/kept/list", b"")
    folders = {
        "a": {
            7: remains_of(log_facts(7, "herd/default")),
            8: remains_of(log_facts(8, "kept")),
            9: remains_of(log_facts(9, "herd/default")),
        }
    }
    report = await rebuild_metadata(folders, store, random.Random(2))
    assert report.restored == (7, 8, 9) and report.lost_logs == ("herd/default",)
    assert await lost_logs(tree.session()) == {"herd/default": 2}
    lists = LogLists(tree.session(), "herd/default", random.Random(3))
    with pytest.raises(CannotRead, match="2 of its ledgers came back"):
        await lists.read_fresh()
    again = await rebuild_metadata(folders, store, random.Random(4))
    assert (again.restored, again.lost_logs) == ((), ())
    assert await lost_logs(store) == {"herd/default": 2}
    assert await forget_lost(store, "herd/default")
    assert not await forget_lost(store, "herd/default")
    # It begins anew, and whoever holds a state of the old one goes on with it.
    assert (await lists.read_fresh()).list == LogList(first_ledger=1)


@pytest.mark.parametrize("highest", [1, 2, 1_023, 1_024, 1_025, 3_000])
async def test_no_id_that_any_folder_names_is_given_again(highest: int) -> None:
    store = MemoryTree("meadow").session()
    report = await rebuild_metadata(
        {"a": {highest: Remains(deleted=True)}}, store, random.Random(1)
    )
    assert (report.deleted, report.highest_id) == ((highest,), highest)
    assert await Ledgers(store, random.Random(2)).new_id() == highest + 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=20))
def test_ranges_stay_disjoint_and_hold_just_what_was_given(
    given_ranges: list[tuple[int, int]],
) -> None:
    remains = Remains()
    ids: set[int] = set()
    for first, more in given_ranges:
        remains.hold(first, first + more)
        ids.update(range(first, first + more + 1))
    held = [one for first, last in remains.ranges for one in range(first, last + 1)]
    assert held == sorted(ids)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(remains.ranges))
    assert (remains.entries_held, remains.last_held) == (len(ids), max(ids, default=-1))
