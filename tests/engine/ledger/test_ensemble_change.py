"""Replacing bookies that fail, and writing on where nothing can replace them."""

import asyncio
from dataclasses import replace as with_settings
from itertools import pairwise

import msgspec
import pytest

from engine.errors import AppendFailed, LedgerFenced, NotEnoughBookies, OutcomeUnknown
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import FolderAge, Registration
from engine.metadata.ledgers import LedgerMetadata, State
from engine.metadata.memory import FaultyStore
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, turns


def ensemble_of(writer: LedgerWriter) -> tuple[str, ...]:
    return writer.metadata.fragments[-1].ensemble


async def test_a_failed_bookie_is_replaced_from_the_entry_after_the_lac() -> None:
    cluster = await Cluster.of(4)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for _ in range(3):
        await writer.append(b"old")
    old = ensemble_of(writer)
    cluster.at(old, 1).append_status = Status.READ_ONLY
    assert await writer.append(b"new") == 3
    await turns()
    fragments = writer.metadata.fragments
    assert [fragment.first for fragment in fragments] == [0, fragments[1].first]
    assert fragments[1].first in (3, 4) and fragments[1].ensemble[1] not in old
    assert fragments[1].ensemble[0] == old[0] and fragments[1].ensemble[2] == old[2]


async def test_nothing_is_sent_to_a_new_bookie_before_the_metadata_names_it() -> None:
    cluster = await Cluster.of(2)
    client = cluster.client()
    writer = await client.create_ledger(1, 1, 1)
    old = cluster.at(ensemble_of(writer), 0)
    spare = next(bookie for bookie in cluster.bookies if bookie is not old)
    named_when_sent: list[bool] = []
    held_append = spare.append

    def watched_append(*args: object, **kwargs: object) -> None:
        versioned = cluster.tree.tree.get(f"/ledgers/{writer.ledger_id}")
        assert versioned is not None
        named_when_sent.append(spare.bookie_id.encode() in versioned.value)
        held_append(*args, **kwargs)  # type: ignore[arg-type]

    spare.append = watched_append  # type: ignore[method-assign]
    old.append_status = Status.UNAVAILABLE
    assert await writer.append(b"moved") == 0
    assert named_when_sent == [True]


async def test_an_acknowledgement_of_a_replaced_bookie_no_longer_counts() -> None:
    cluster = await Cluster.of(4)
    writer = await cluster.client().create_ledger(3, 3, 2)
    old = ensemble_of(writer)
    for index in range(3):
        cluster.at(old, index).holding = True
    future = asyncio.ensure_future(writer.append(b"twice needed"))
    await turns()
    spare = next(bookie for bookie in cluster.bookies if bookie.bookie_id not in old)
    spare.holding = True
    cluster.at(old, 0).release()
    writer._replication.suspect(frozenset([old[0]]))
    await turns(50)
    assert ensemble_of(writer)[0] == spare.bookie_id
    cluster.at(old, 1).release()
    await turns()
    assert not future.done(), "one acknowledgement of the new ensemble is not a quorum"
    spare.release()
    assert await future == 0


async def test_an_old_acknowledgement_is_unset_before_later_entries_are_confirmed() -> None:
    """BookKeeper issues 3005 and 4097: with striping, a later entry slipped through."""
    cluster = await Cluster.of(6)
    writer = await cluster.client().create_ledger(5, 3, 2)
    old = ensemble_of(writer)
    for bookie in cluster.bookies:
        bookie.holding = True
    entries = asyncio.ensure_future(writer.append_many([b"x"] * 512))
    await turns()
    cluster.at(old, 2).release()
    writer._replication.suspect(frozenset([old[2]]))
    for index in (0, 3):
        cluster.at(old, index).release()
    await turns(50)
    assert writer.last_add_confirmed == -1 and not entries.done()
    for bookie in cluster.bookies:
        bookie.holding = False
        bookie.release()
    assert await entries == list(range(512))


async def test_confirmations_stand_still_while_the_ensemble_changes() -> None:
    cluster = await Cluster.of(4)
    store = FaultyStore(cluster.tree.session())
    writer = await cluster.client(store=store).create_ledger(3, 3, 2)
    old = ensemble_of(writer)
    for bookie in cluster.bookies:
        bookie.holding = True
    future = asyncio.ensure_future(writer.append(b"x"))
    await turns()
    go_on = asyncio.Event()
    store.before_write(go_on.wait)
    writer._replication.suspect(frozenset([old[0]]))
    await turns()
    for index in (1, 2):
        cluster.at(old, index).release()
    await turns(50)
    assert not future.done() and writer.last_add_confirmed == -1
    go_on.set()
    assert await future == 0
    assert [fragment.first for fragment in writer.metadata.fragments] == [0]


async def test_a_lost_reply_of_the_metadata_store_is_no_conflict() -> None:
    cluster = await Cluster.of(2)
    store = FaultyStore(cluster.tree.session())
    writer = await cluster.client(store=store).create_ledger(1, 1, 1)
    cluster.at(ensemble_of(writer), 0).append_status = Status.UNAVAILABLE
    store.lose_reply()
    assert await writer.append(b"moved") == 0


async def test_writing_goes_on_without_a_replacement_and_the_ledger_waits_for_repair() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"three copies")
    cluster.at(ensemble_of(writer), 2).append_status = Status.UNAVAILABLE
    for number in range(20):
        assert await writer.append(b"two copies") == number + 1
    assert len(writer.metadata.fragments) == 1
    assert await writer.close() == 20
    assert (await client.ledger_metadata(writer.ledger_id)).degraded
    assert await client.repairs() == [writer.ledger_id]


async def test_a_writer_without_an_ack_quorum_fails_with_outcome_unknown() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for index in (0, 1):
        cluster.at(ensemble_of(writer), index).append_status = Status.UNAVAILABLE
    with pytest.raises(AppendFailed) as failure:
        await writer.append(b"x")
    assert isinstance(failure.value, OutcomeUnknown)


async def test_a_ledger_can_be_created_while_a_known_bookie_is_away() -> None:
    cluster = await Cluster.of(3)
    await cluster.registry.unregister("b1")
    cluster.transport.bookies["b1"].down = True
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    assert await writer.append(b"two of three") == 0
    assert set(ensemble_of(writer)) == {"b0", "b1", "b2"}
    assert await client.repairs() == [writer.ledger_id]


async def test_no_ledger_is_created_that_a_recovery_could_not_decide_without_the_absent() -> None:
    cluster = await Cluster.of(3)
    await cluster.registry.unregister("b1")
    with pytest.raises(NotEnoughBookies):
        await cluster.client().create_ledger(3, 3, 1)
    assert (await cluster.client().create_ledger(2, 2, 1)).metadata.fragments[0].first == 0


async def test_a_bookie_that_comes_back_is_taken_into_the_ensemble_again() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    lost = cluster.at(ensemble_of(writer), 1)
    lost.down = True
    lost.append_status = Status.UNAVAILABLE
    await cluster.registry.unregister(lost.bookie_id)
    assert await writer.append(b"without") == 0
    lost.down, lost.append_status = False, Status.OK
    lost.boot += 1
    await cluster.registry.raise_age(lost.bookie_id, FolderAge(lost.boot))
    await cluster.registry.register(Registration(lost.bookie_id, lost.boot))
    await turns(100)
    first = await writer.append(b"with")
    await turns()
    assert first in lost.entries[writer.ledger_id]


async def test_an_idle_writer_replaces_a_bookie_whose_registration_went() -> None:
    cluster = await Cluster.of(4)
    writer = await cluster.client().create_ledger(3, 3, 2)
    gone = ensemble_of(writer)[0]
    await cluster.registry.unregister(gone)
    await turns(100)
    assert gone not in ensemble_of(writer)


async def test_a_bookie_that_answers_nothing_is_replaced_after_the_timeout() -> None:
    cluster = await Cluster.of(4)
    settings = with_settings(QUICK, append_timeout_ms=60)
    writer = await cluster.client(settings).create_ledger(3, 3, 3)
    mute = cluster.at(ensemble_of(writer), 1)
    mute.mute = True
    assert await writer.append(b"x") == 0
    assert mute.bookie_id not in ensemble_of(writer)


async def test_bytes_held_for_a_straggler_are_bounded() -> None:
    cluster = await Cluster.of(4)
    settings = with_settings(QUICK, straggler_bytes_max=10_000, append_timeout_ms=60_000)
    writer = await cluster.client(settings).create_ledger(3, 3, 2)
    slow = cluster.at(ensemble_of(writer), 1)
    slow.holding = True
    for _ in range(12):
        await writer.append(b"x" * 1_000)
    await turns(50)
    assert slow.bookie_id not in ensemble_of(writer)
    assert writer._replication._stragglers.size_bytes == 0


async def test_an_ensemble_change_that_meets_a_recovery_is_fenced() -> None:
    cluster = await Cluster.of(4)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"x")
    ledgers = client._ledgers
    held = await ledgers.read(writer.ledger_id)

    def to_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
        return msgspec.structs.replace(metadata, state=State.IN_RECOVERY)

    await ledgers.update(held, to_recovery)
    cluster.at(ensemble_of(writer), 0).append_status = Status.UNAVAILABLE
    with pytest.raises(LedgerFenced):
        await writer.append(b"y")
        await writer.append(b"z")
        await turns(50)
        await writer.append(b"late")


async def test_every_new_fragment_is_told_to_all_bookies_of_the_ensemble() -> None:
    cluster = await Cluster.of(4)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"x")
    cluster.at(ensemble_of(writer), 0).append_status = Status.UNAVAILABLE
    await writer.append(b"y")
    await turns(50)
    await writer.append(b"z")
    for name in ensemble_of(writer):
        facts = cluster.transport.bookies[name].facts[-1]
        assert facts.ensemble == ensemble_of(writer)


async def test_an_idle_writer_without_enough_bookies_asks_the_store_ever_more_rarely() -> None:
    cluster = await Cluster.of(3)
    settings = with_settings(QUICK, append_timeout_ms=2_000)
    client = cluster.client(settings)
    writer = await client.create_ledger(3, 3, 2)
    available = client._bookies.available
    asked_at: list[float] = []
    enough = asyncio.Event()

    async def counted() -> dict[str, Registration]:
        asked_at.append(asyncio.get_running_loop().time())
        if len(asked_at) == 8:
            enough.set()
        return await available()

    client._bookies.available = counted  # type: ignore[method-assign]
    writer._replication.suspect(frozenset(ensemble_of(writer)[:2]))
    await enough.wait()
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses[-1] > 0.05 > pauses[0], "each pause is twice the one before"
