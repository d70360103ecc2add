"""A log that was removed, and the next one of its name: epochs and positions never meet."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from engine.errors import (
    CannotRead,
    Deposed,
    EngineError,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    PositionTruncated,
    RecoveryIncomplete,
    Unavailable,
)
from engine.log.log import ReplicatedLog
from engine.log.log_list import Leader, LogList, LogLists
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position
from engine.metadata.ledgers import LEDGERS, LedgerMetadata, Ledgers
from engine.metadata.lost_logs import lost_logs, note_lost
from engine.transport.contract import Status
from tests.engine.log.yard import LIST, NAME, Tailing, ToldStore, Yard, bodies, led, numbered, until


async def yes() -> bool:
    return True


def after(step: Awaitable[object]) -> Callable[[], Awaitable[bool]]:
    """It is to go, and while that is looked up something else happens."""

    async def still() -> bool:
        await step
        return True

    return still


async def test_a_removal_is_a_term_that_leaves_nothing_but_its_epoch() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append_many(numbered(0, 3))
    await log.pin("reader", START, 60_000)
    last = writer.ledger
    epoch = await yard.log().remove(yes)
    assert epoch == writer.epoch + 1
    current = await log.list()
    assert current == LogList(epoch, token=current.token) and current.full_history
    assert isinstance(await writer.ended(), Deposed)
    with pytest.raises(EngineError):
        await writer.append(b"too late")
    assert await log.sweep(set(), epoch) == [last]
    with pytest.raises(NoSuchLedger):
        await yard.client().ledger_metadata(last)


async def test_a_removal_keeps_who_led_and_nobody_leads() -> None:
    yard = await Yard.of(3)
    log = yard.log()
    await log.lead(Leader("process", "replica", "address", 1_000), await log.seen())
    led_by = (await log.list()).leader
    await log.remove(yes)
    current = await log.list()
    assert led_by is not None and current.leader == led_by and current.leader_address == ""
    assert current.format_major == 2, "older programs do not know of its lease"


async def test_a_log_is_not_removed_before_the_bookies_of_its_last_ledger_were_fenced() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    last = writer.ledger
    for bookie in yard.bookies:
        bookie.down = True
    with pytest.raises(Unavailable, match=f"herdbook ledger delete --force {last}"):
        await yard.log().remove(yes)
    assert (await log.list()).ledgers
    for bookie in yard.bookies:
        bookie.down = False
    await yard.log().remove(yes)
    with pytest.raises(EngineError):
        await writer.append(b"too late")


async def test_a_log_is_removed_even_if_full_disks_reject_the_writes_of_a_recovery() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    last = writer.ledger
    ensemble = (await yard.client().ledger_metadata(last)).fragments[-1].ensemble
    for index in (1, 2):
        yard.at(ensemble, index).append_status = Status.READ_ONLY
    # Only the first bookie has this entry, so a recovery would have to copy it.
    lost = writer.append(b"two")

    async def taken() -> bool:
        return 1 in yard.at(ensemble, 0).entries[last]

    await until(taken)
    writer.abandon(LedgerClosed("its process has ended"))
    await asyncio.gather(lost, return_exceptions=True)
    with pytest.raises(RecoveryIncomplete):
        await yard.client().open_ledger(last)
    await yard.log().remove(yes)
    assert not (await log.list()).ledgers


async def test_a_log_is_removed_even_if_its_end_cannot_be_determined() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append(b"one")
    last = writer.ledger
    ensemble = (await yard.client().ledger_metadata(last)).fragments[-1].ensemble
    yard.at(ensemble, 0).down = True
    yard.at(ensemble, 1).damaged.add((last, 1))
    with pytest.raises(RecoveryIncomplete):
        await yard.client().open_ledger(last)
    await yard.log().remove(yes)
    assert not (await log.list()).ledgers
    yard.at(ensemble, 0).down = False
    with pytest.raises(EngineError):
        await writer.append(b"too late")


async def test_a_log_whose_last_ledger_has_unreadable_metadata_is_not_removed() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    key = f"{LEDGERS}/{writer.ledger}"
    found = await yard.store.get(key)
    assert found is not None
    await yard.store.set(key, b"damaged", found.version)
    with pytest.raises(Unavailable, match=f"herdbook ledger delete --force {writer.ledger}"):
        await yard.log().remove(yes)
    assert (await log.list()).ledgers


async def test_a_log_whose_last_ledger_was_deleted_can_be_removed() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    for bookie in yard.bookies:
        bookie.down = True
    await yard.client().delete_ledger(writer.ledger)
    await yard.log().remove(yes)
    assert not (await log.list()).ledgers


async def test_the_next_log_of_the_name_goes_on_from_the_epoch_and_begins_at_start() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    await writer.append_many(numbered(0, 3))
    old = writer.last
    epoch = await log.remove(yes)
    tailing = Tailing(yard.log())
    again = await yard.log().lead()
    assert again.epoch == epoch + 1 and again.last == START
    await again.append_many(numbered(100, 2))
    assert await tailing.until(2) == numbered(100, 2)
    await tailing.stop()
    assert await bodies(yard.log()) == numbered(100, 2)
    assert (await log.list()).first_ledger == again.ledger > old.ledger


async def test_a_position_of_the_removed_log_is_none_of_the_next_one() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    spans = await writer.append_many(numbered(0, 3))
    old = spans[0].last
    at_the_end = Tailing(yard.log(), old)
    await log.remove(yes)
    assert not (await log.list()).keeps_after(old)
    again = await yard.log().lead()
    (span,) = await again.append_many(numbered(100, 2))
    current = await log.list()
    assert not current.knows(old) and current.knows(span.last) and current.knows(START)
    for reading in (at_the_end.until(1), bodies(yard.log(), old), log.pin("old", old, 60_000)):
        with pytest.raises(PositionTruncated):
            await reading
    assert at_the_end.found == []


async def test_a_removal_that_is_late_changes_nothing_of_the_next_log() -> None:
    yard = await Yard.of(3)
    log, _ = await led(yard)
    looked, on = asyncio.Event(), asyncio.Event()

    async def still() -> bool:
        looked.set()
        await on.wait()
        return True

    late = asyncio.ensure_future(yard.log().remove(still))
    await looked.wait()
    await log.remove(yes)
    writer = await yard.log().lead()
    await writer.append_many(numbered(0, 3))
    before = await log.list()
    on.set()
    with pytest.raises(Deposed):
        await late
    assert await log.list() == before
    assert await writer.append(b"more") == Position(writer.ledger, 3)


async def test_a_log_that_is_not_to_go_stays_as_it_is() -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    before = await log.list()

    async def no() -> bool:
        return False

    with pytest.raises(Deposed, match="not to be removed"):
        await log.remove(no)
    assert await log.list() == before
    assert await writer.append(b"goes on") == Position(writer.ledger, 0)


async def test_a_leader_that_begins_while_a_removal_looks_deposes_it() -> None:
    yard = await Yard.of(3)
    log, _ = await led(yard)
    with pytest.raises(Deposed):
        await log.remove(after(yard.log().lead()))
    assert len((await log.list()).ledgers) == 2


async def test_a_log_that_begins_before_the_list_is_emptied_keeps_its_ledger() -> None:
    yard = await Yard.of(3)
    log, _ = await led(yard)
    store = ToldStore(yard.tree.session())
    writers: list[LogWriter] = []

    async def between(kind: str, key: str) -> None:
        if (kind, key) == ("set", LIST) and not writers:
            writers.append(await yard.log().lead())

    store.after = between
    with pytest.raises(Deposed):
        await yard.log(store=store).remove(yes)
    (writer,) = writers
    assert (await log.list()).ledgers[-1] == writer.ledger
    assert await writer.append(b"goes on") == Position(writer.ledger, 0)


async def test_a_removal_that_cannot_fence_the_last_leader_without_metadata_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = await Yard.of(3)
    log, writer = await led(yard)
    removing = yard.log()
    client = removing._client

    async def away(ledger_id: int, **options: object) -> None:
        raise MetadataUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(client, "open_ledger", away)
        with pytest.raises(MetadataUnavailable):
            await removing.remove(yes)
    assert (await log.list()).ledgers == (writer.ledger,)
    epoch = await removing.remove(yes)
    assert (await log.list()).ledgers == ()
    assert epoch == writer.epoch + 2


async def test_a_log_that_nobody_ever_led_is_removed_too() -> None:
    yard = await Yard.of(3)
    log = yard.log()
    assert await log.remove(yes) == 1
    assert await log.remove(yes) == 2, "and again, when it was cut short"
    assert (await log.lead()).epoch == 3


async def _ledger(epoch: int) -> LedgerMetadata:
    """What a ledger of the log says, of an epoch."""
    yard = await Yard.of(3)
    custom = ReplicatedLog(yard.client(), NAME).custom_metadata("log", epoch)
    writer = await yard.client().create_ledger(metadata=custom)
    return (await Ledgers(yard.store, random.Random(1)).read(writer.ledger_id)).metadata


async def test_ledgers_that_come_back_were_lost_only_if_they_are_newer_than_the_removal() -> None:
    yard = await Yard.of(3)
    epoch = await yard.log().remove(yes)
    store = yard.tree.session()
    assert await note_lost(store, [await _ledger(epoch)]) == {}
    assert await lost_logs(store) == {}
    assert await note_lost(store, [await _ledger(epoch), await _ledger(epoch + 1)]) == {NAME: 2}
    with pytest.raises(CannotRead, match="2 of its ledgers came back"):
        await LogLists(store, NAME, random.Random(2)).read_fresh()
