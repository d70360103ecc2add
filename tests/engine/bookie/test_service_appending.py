"""Appends: acknowledged when durable, stored once, refused for one clear reason."""

import asyncio
import random
import time

from engine.bookie.scan import Found, JournalScan
from engine.bookie.segment import Kind
from engine.bookie.settings import BookieSettings
from engine.run import Run
from engine.transport.contract import Status
from tests.engine.bookie import stable
from tests.engine.bookie.stable import (
    SETTINGS,
    Stable,
    append,
    ask,
    facts_of,
    ids_of,
    read,
    read_all,
    run_of,
)


def written(yard: Stable) -> list[tuple[int, int]]:
    """The ranges of all RUN records in the journal, in order."""
    records = JournalScan(yard.disk, yard.index.position()).records()
    return [
        (found.header.first, found.header.last)
        for found in records
        if isinstance(found, Found) and found.header.kind == Kind.RUN
    ]


async def test_an_append_is_acknowledged_only_when_it_is_durable() -> None:
    yard = Stable()
    service = await yard.start()
    yard.hold()
    asked = ask(service, run_of(7, 0, 3), facts=facts_of(7))
    await stable.turns()
    assert not asked.replies
    assert (await read(service, 7, 0, 3)).runs == ()
    yard.release()
    reply = await asked.reply()
    assert (reply.status, reply.first, reply.last) == (Status.OK, 0, 3)
    assert (reply.bookie_id, reply.boot) == (service.bookie_id, 1)
    service = await yard.crash()
    assert ids_of(await read(service, 7, 0, 3)) == [0, 1, 2, 3]


async def test_all_that_is_queued_is_one_write_and_one_sync() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    yard.hold()
    asked = [ask(service, run_of(7, i, i), run_of(7, i + 1, i + 1)) for i in range(1, 21, 2)]
    before = yard.disk.operations
    yard.release()
    for each in asked:
        assert (await each.reply()).status is Status.OK
    assert yard.disk.operations - before == 2


async def test_runs_of_one_request_are_read_back_as_one_range() -> None:
    service = await Stable().start()
    await append(service, *[run_of(7, i, i + 9) for i in range(0, 100, 10)])
    reply = await read(service, 7, 5, 72)
    assert ids_of(reply) == list(range(5, 73)) and reply.missing is None
    reply = await read(service, 7, 95, 120)
    assert ids_of(reply) == list(range(95, 100))
    reply = await read(service, 7, 100, 120)
    assert reply.runs == () and reply.missing == (100, 120)


async def test_a_read_stops_near_its_bound_and_gives_at_least_one_entry() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, *[run_of(7, i, i) for i in range(100)])
    # From memory the entries' bytes count; a search of the index counts headers, too.
    for count in (10, 4):
        reply = await read(service, 7, 0, 99, max_bytes=400)
        assert ids_of(reply) == list(range(count))
        assert reply.missing is None and reply.unknown is None
        assert ids_of(await read(service, 7, 3, 99, max_bytes=0)) == [3]
        service = await yard.crash()


async def test_small_neighbours_come_as_one_run_that_crosses_no_stripe() -> None:
    service = await Stable().start()
    await append(service, *[run_of(7, i, i) for i in range(250, 260)], facts=facts_of(7))
    reply = await read(service, 7, 250, 259)
    assert [(run.first, run.last, run.lac) for run in reply.runs] == [
        (250, 255, 249),
        (256, 259, 255),
    ]
    assert reply.runs[1].length == 40 * 260
    assert ids_of(reply) == list(range(250, 260))


async def test_a_gap_is_named_missing_and_no_more_than_the_gap() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 1))
    await append(service, run_of(7, 10, 11))
    for _ in range(2):
        reply = await read(service, 7, 0, 20)
        assert ids_of(reply) == [0, 1]
        reply = await read(service, 7, 2, 20)
        assert reply.missing == (2, 9)
        service = await yard.crash()


async def test_a_ledger_never_seen_is_no_such_ledger() -> None:
    service = await Stable().start()
    assert (await read(service, 7, 0, 0)).status is Status.NO_SUCH_LEDGER
    assert (await append(service, run_of(7, 0, 0), facts=None)).status is Status.NO_SUCH_LEDGER
    assert (await service.wait_lac(7, -1, 0)).status is Status.NO_SUCH_LEDGER


async def test_the_same_ids_are_stored_once_whatever_their_boundaries() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 9))
    assert (await append(service, run_of(7, 0, 9))).status is Status.OK
    assert (await append(service, run_of(7, 5, 7), run_of(7, 8, 12))).status is Status.OK
    assert written(yard) == [(0, 9), (10, 12)]
    assert await read_all(service, 7, 0, 12) == list(range(13))


async def test_ids_below_a_gap_are_filled_in() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 10, 12))
    assert (await append(service, run_of(7, 0, 11))).status is Status.OK
    assert written(yard) == [(10, 12), (0, 9)]
    assert await read_all(service, 7, 0, 12) == list(range(13))


async def test_other_bytes_for_a_held_id_are_a_conflict() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 9))
    other = Run.pack(7, 9, [b"other", b"bytes"], lac=8, length_before=0)
    for _ in range(2):
        assert (await append(service, other)).status is Status.CONFLICT
        assert (await append(service, other, recovery=True)).status is Status.CONFLICT
        assert ids_of(await read(service, 7, 0, 9)) == list(range(10))
        service = await yard.crash()


async def test_a_repeat_of_a_queued_run_is_acknowledged_only_when_that_is_durable() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    yard.hold()
    once = ask(service, run_of(7, 1, 3))
    again = ask(service, run_of(7, 1, 3))
    behind = ask(service, run_of(7, 4, 4))
    await stable.turns()
    assert not once.replies and not again.replies and not behind.replies
    yard.release()
    for asked in (once, again, behind):
        assert (await asked.reply()).status is Status.OK
    assert written(yard) == [(0, 0), (1, 3), (4, 4)]


async def test_a_fence_that_comes_during_a_look_up_refuses_the_append() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    asked = ask(service, run_of(7, 2, 5))
    fencing = asyncio.ensure_future(service.fence(7, stable.KEY))
    assert (await asked.reply()).status is Status.FENCED
    await fencing
    assert written(yard) == [(0, 3)]


async def test_a_malformed_request_is_invalid_and_stores_nothing() -> None:
    yard = Stable()
    service = await yard.start()
    good = run_of(7, 0, 3)
    gap = ask(service, good, run_of(7, 5, 6), facts=facts_of(7))
    assert (await gap.reply()).status is Status.INVALID
    short = Run(7, 0, 4, -1, good.length, good.table[:-8], good.body)
    assert (await append(service, short)).status is Status.INVALID
    assert (await read(service, 7, 0, 3)).status is Status.NO_SUCH_LEDGER


async def test_a_full_queue_pushes_back_and_loses_nothing() -> None:
    yard = Stable(settings=BookieSettings(journal_queue_bytes_max=10_000, reserve_bytes=0))
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    yard.hold()
    asked = [ask(service, run_of(7, i, i, size=1_000)) for i in range(1, 21)]
    await stable.turns()
    refused = [each for each in asked if each.replies]
    assert refused and all(each.replies[0].status is Status.OVERLOADED for each in refused)
    yard.release()
    taken = [each for each in asked if each not in refused]
    assert taken and {(await each.reply()).status for each in taken} == {Status.OK}
    assert (await append(service, *[run_of(7, i, i) for i in range(21, 25)])).status is Status.OK


async def test_a_full_queue_still_has_room_for_a_recovery() -> None:
    yard = Stable(settings=BookieSettings(journal_queue_bytes_max=80_000, reserve_bytes=0))
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    await append(service, run_of(8, 0, 0))
    yard.hold()
    asked = [ask(service, run_of(7, i, i, size=8_000)) for i in range(1, 21)]
    await stable.turns()
    assert any(each.replies for each in asked)
    recovered = ask(service, run_of(8, 1, 1, size=8_000), recovery=True)
    await stable.turns()
    assert not recovered.replies
    yard.release()
    assert (await recovered.reply()).status is Status.OK


async def test_a_bookie_that_leaves_finishes_what_it_took_and_still_serves_recoveries() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    yard.hold()
    taken = ask(service, run_of(7, 1, 1))
    leaving = asyncio.ensure_future(service.leave())
    await stable.turns()
    assert not leaving.done() and not taken.replies
    yard.release()
    await leaving
    assert (await taken.reply()).status is Status.OK
    assert (await append(service, run_of(7, 2, 2))).status is Status.READ_ONLY
    assert not service.writable and not await yard.tree.session().children("/bookies")
    assert (await append(service, run_of(7, 2, 2), recovery=True)).status is Status.OK
    assert ids_of(await read(service, 7, 0, 2)) == [0, 1, 2]


async def test_an_index_that_lags_pushes_back_too() -> None:
    settings = BookieSettings(index_queue_records_max=4, index_batch_records=4, reserve_bytes=0)
    yard = Stable(settings=settings)
    service = await yard.start()
    yard.workers.threads["index"].held = True
    statuses = [(await append(service, run_of(7, i, i))).status for i in range(10)]
    assert statuses[0] is Status.OK and statuses[-1] is Status.OVERLOADED
    assert ids_of(await read(service, 7, 0, 3)) == [0, 1, 2]
    yard.workers.threads["index"].release()
    await stable.turns()
    assert (await append(service, run_of(7, 9, 9))).status is Status.OK


async def test_the_lac_rides_on_runs_and_never_goes_back() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 9), run_of(7, 10, 11, lac=9))
    service.confirm(7, 5)
    assert (await service.wait_lac(7, -1, 0)).lac == 9
    service = await yard.crash()
    assert (await service.wait_lac(7, -1, 0)).lac == 9
    service.confirm(7, 11)
    await service.close()
    service = await yard.start()
    assert (await service.wait_lac(7, -1, 0)).lac == 11
    assert (await service.fence(7, stable.KEY)).lac == 11


async def test_a_long_poll_wakes_on_the_lac_on_a_fence_and_on_a_close() -> None:
    service = await Stable().start()
    await append(service, run_of(7, 0, 0))
    polls = [asyncio.ensure_future(service.wait_lac(7, above, 60_000)) for above in (-1, 0)]
    await stable.turns()
    assert not any(poll.done() for poll in polls)
    service.confirm(7, 0)
    assert (await polls[0]).lac == 0 and not polls[1].done()
    await service.fence(7, stable.KEY)
    assert (await polls[1]).status is Status.FENCED
    await append(service, run_of(8, 0, 0))
    poll = asyncio.ensure_future(service.wait_lac(8, 5, 60_000))
    await stable.turns()
    service.record(facts_of(8, closed_last=0, closed_length=40), stable.KEY)
    reply = await poll
    assert (reply.status, reply.lac) == (Status.FENCED, 0)


async def test_the_end_of_a_long_poll_costs_the_same_however_many_there_are() -> None:
    service = await Stable().start()
    await append(service, run_of(7, 0, 0))
    polls = [asyncio.ensure_future(service.wait_lac(7, 5, 60_000)) for _ in range(40_000)]
    await stable.turns()
    begun_s = time.process_time()
    for poll in polls:
        poll.cancel()
    await asyncio.wait(polls)
    # To look through all others at each end took 15 s.
    assert time.process_time() - begun_s < 5
    assert not service.storage.states.get(7).waiters


async def test_facts_are_stored_once_and_newer_ones_replace_them() -> None:
    yard = Stable()
    service = await yard.start()
    for first in range(3):
        await append(service, run_of(7, first, first))
    newer = facts_of(7, fragment_first=3, ensemble=("c",))
    await append(service, run_of(7, 3, 3), facts=newer)
    await append(service, run_of(7, 4, 4), facts=facts_of(7))
    service = await yard.crash()
    assert service.storage.states.get(7).facts == newer
    service.record(facts_of(7, fragment_first=3, closed_last=4), stable.KEY)
    service.record(newer, stable.KEY)
    service = await yard.crash()
    assert service.storage.states.get(7).closed_last in (4, None)


async def test_ledger_states_stay_few_and_forget_nothing() -> None:
    settings = BookieSettings(ledger_states_max=4, index_delay_ms=0, reserve_bytes=0)
    yard = Stable(settings=settings)
    service = await yard.start()
    for ledger_id in range(40):
        await append(service, run_of(ledger_id, 0, 1), run_of(ledger_id, 2, 2, lac=1))
        await service.fence(ledger_id, stable.KEY)
        await stable.turns(10)
    assert len(service.storage.states.loaded()) <= 8
    for ledger_id in range(40):
        assert (await append(service, run_of(ledger_id, 3, 3))).status is Status.FENCED
        assert (await service.wait_lac(ledger_id, -1, 0)).lac == 1


async def test_a_ledger_in_use_is_never_evicted() -> None:
    yard = Stable(settings=BookieSettings(ledger_states_max=2, reserve_bytes=0))
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    yard.hold()
    fencing = asyncio.ensure_future(service.fence(7, stable.KEY))
    await stable.turns()
    for ledger_id in range(100, 120):
        await read(service, ledger_id, 0, 0)
    late = ask(service, run_of(7, 1, 1))
    yard.release()
    assert (await late.reply()).status is Status.FENCED
    await fencing


async def test_whatever_moment_the_power_goes_what_was_acknowledged_is_there() -> None:
    for seed in range(40):
        yard = Stable(seed, BookieSettings(segment_bytes=2_000, index_delay_ms=0, reserve_bytes=0))
        service = await yard.start()
        rng = random.Random(seed)
        acknowledged: dict[int, int] = {}
        for _ in range(4):
            asked = []
            for _ in range(rng.randint(1, 30)):
                ledger_id = rng.randint(1, 3)
                first = acknowledged.get(ledger_id, -1) + 1 - rng.randint(0, 1)
                run = run_of(ledger_id, max(0, first), max(0, first) + rng.randint(0, 6))
                asked.append(ask(service, run, facts=facts_of(ledger_id)))
                await stable.turns(rng.randint(0, 4))
                for reply in [reply for each in asked for reply in each.replies]:
                    assert reply.status is Status.OK
                    seen = acknowledged.get(reply.ledger_id, -1)
                    acknowledged[reply.ledger_id] = max(seen, reply.last)
            service = await yard.crash(power=rng.random() < 0.7)
            assert not service.damaged
            for ledger_id, last in acknowledged.items():
                assert await read_all(service, ledger_id, 0, last) == list(range(last + 1))


def test_the_settings_of_these_tests_differ_only_in_time_and_reserve() -> None:
    usual = BookieSettings()
    assert SETTINGS.segment_bytes == usual.segment_bytes
    assert SETTINGS.recent_runs_bytes_max == usual.recent_runs_bytes_max
