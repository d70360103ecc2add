"""Torn tails, damage, missing segments: what a bookie may say after each."""

import asyncio
import errno
from collections.abc import Sequence

import pytest

from engine.bookie.scan import Found, SegmentScan, segments_of
from engine.bookie.segment import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Kind,
    decode_segment_header,
    name_of,
)
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.metadata.bookies import Bookies
from engine.ports.disk import Space
from engine.transport.contract import Status
from tests.engine.bookie import stable
from tests.engine.bookie.stable import (
    KEY,
    Stable,
    append,
    ask,
    facts_of,
    flip,
    ids_of,
    read,
    read_all,
    run_of,
    three_batches,
    writable,
)


def runs_in(yard: Stable, service: BookieService, segment: int = 1) -> list[Found]:
    scan = SegmentScan(yard.disk, segment, service.identity.salt)
    return [
        found
        for found in scan.records()
        if isinstance(found, Found) and found.header.kind == Kind.RUN
    ]


# Torn tails


async def test_a_torn_last_batch_is_cut_and_its_ids_are_missing() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    size_bytes = yard.disk.size(name_of(1))
    await append(service, run_of(7, 4, 7))
    yard.disk.truncate(name_of(1), yard.disk.size(name_of(1)) - 10)
    service = await yard.crash()
    assert not service.damaged
    assert yard.disk.size(name_of(1)) == size_bytes
    assert await read_all(service, 7, 0, 3) == [0, 1, 2, 3]
    assert (await read(service, 7, 4, 7)).missing == (4, 7)


async def test_a_last_batch_whose_bodies_never_reached_the_disk_is_cut() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    await append(service, run_of(7, 4, 7))
    flip(yard.disk, name_of(1), yard.disk.size(name_of(1)) - 1)
    service = await yard.crash()
    assert not service.damaged
    assert (await read(service, 7, 4, 7)).missing == (4, 7)


async def test_a_new_segment_that_was_never_synced_goes_away() -> None:
    yard = Stable(settings=BookieSettings(segment_bytes=600, reserve_bytes=0))
    service = await three_batches(yard)
    newest = segments_of(yard.disk)[-1]
    assert newest > 1
    flip(yard.disk, name_of(newest), 20)
    service = await yard.crash()
    assert not service.damaged
    assert (await read(service, 7, 8, 11)).missing == (8, 11)
    assert (await append(service, run_of(7, 8, 11))).status is Status.OK
    service = await yard.crash()
    assert await read_all(service, 7, 0, 11) == list(range(12))


async def test_what_a_failed_sync_left_in_the_cache_is_written_again_before_it_counts() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    yard.disk.fail_after = 1
    assert (await append(service, run_of(7, 4, 7))).status is Status.UNAVAILABLE
    yard.disk.restart()
    service = await yard.crash(power=False)
    held = await read_all(service, 7, 0, 7)
    assert held == list(range(8))
    # The first copy of 4 to 7 is only in the cache, and the system believes it is not dirty.
    assert (await append(service, run_of(7, 4, 7))).status is Status.OK
    service = await yard.crash(power=True)
    assert await read_all(service, 7, 0, 7) == list(range(8))
    assert not service.damaged


async def test_a_clean_end_leaves_a_mark_and_needs_no_new_segment() -> None:
    yard = Stable()
    service = await three_batches(yard)
    await service.close()
    service = await yard.start()
    await append(service, run_of(7, 12, 13))
    assert segments_of(yard.disk) == [1]
    await service.close()
    flip(yard.disk, name_of(1), yard.disk.size(name_of(1)) - RECORD_HEADER_BYTES - 1)
    yard.index = type(yard.index)()
    service = await yard.start()
    # After the mark the last batch is known to have been synced: it is not cut.
    reply = await read(service, 7, 12, 13)
    assert len(reply.runs) == 1 and reply.runs[0].first_corrupt() == 13


async def test_an_idle_bookie_marks_that_all_is_synced() -> None:
    yard = Stable(settings=BookieSettings(synced_mark_ms=0, reserve_bytes=0))
    service = await three_batches(yard)
    for _ in range(200):
        await asyncio.sleep(0)
    service = await yard.crash()
    assert segments_of(yard.disk) == [1]
    assert await read_all(service, 7, 0, 11) == list(range(12))


# Damage


async def test_a_damaged_table_makes_its_ids_unknown_and_no_others() -> None:
    yard = Stable()
    service = await three_batches(yard)
    second = runs_in(yard, service)[1]
    flip(yard.disk, name_of(1), second.offset + RECORD_HEADER_BYTES + 2)
    service = await yard.crash()
    assert not service.damaged
    assert await read_all(service, 7, 0, 3) == [0, 1, 2, 3]
    reply = await read(service, 7, 4, 11)
    assert (reply.runs, reply.missing, reply.unknown) == ((), None, (4, 7))
    assert await read_all(service, 7, 8, 11) == [8, 9, 10, 11]


async def test_a_recovery_write_mends_damaged_ids_for_good() -> None:
    yard = Stable()
    service = await three_batches(yard)
    second = runs_in(yard, service)[1]
    flip(yard.disk, name_of(1), second.offset + RECORD_HEADER_BYTES + 2)
    service = await yard.crash()
    assert (await append(service, run_of(7, 3, 8), recovery=True)).status is Status.OK
    for _ in range(2):
        assert await read_all(service, 7, 0, 11) == list(range(12))
        service = await yard.crash()


async def test_a_body_that_fails_its_digest_counts_as_not_held_for_a_repeated_append() -> None:
    yard = Stable()
    service = await three_batches(yard)
    await service.close()
    second = runs_in(yard, service)[1]
    flip(yard.disk, name_of(1), second.offset + second.header.size_bytes - 1)
    service = await yard.start()
    reply = await read(service, 7, 4, 7)
    assert reply.runs[0].first_corrupt() == 7
    assert (await append(service, run_of(7, 4, 7), recovery=True)).status is Status.OK
    for _ in range(2):
        assert await read_all(service, 7, 0, 11) == list(range(12))
        service = await yard.crash()


async def test_damage_found_by_a_read_is_unknown_and_can_be_written_again() -> None:
    yard = Stable()
    service = await three_batches(yard)
    await service.close()
    second = runs_in(yard, service)[1]
    flip(yard.disk, name_of(1), second.offset + 10)
    service = await yard.start()
    reply = await read(service, 7, 4, 7)
    assert (reply.missing, reply.unknown) == (None, (4, 7))
    assert (await append(service, run_of(7, 4, 7), recovery=True)).status is Status.OK
    assert await read_all(service, 7, 0, 11) == list(range(12))


async def test_an_unreadable_header_makes_every_negative_of_older_ledgers_unknown() -> None:
    yard = Stable()
    service = await three_batches(yard)
    second = runs_in(yard, service)[1]
    for _ in range(9):
        await yard.tree.session().next_id("/ids/ledger")
    flip(yard.disk, name_of(1), second.offset + 10)
    service = await yard.crash()
    for newer in (100, 101):
        assert service.damaged
        assert await read_all(service, 7, 0, 3) == [0, 1, 2, 3]
        reply = await read(service, 7, 5, 7)
        assert (reply.missing, reply.unknown) == (None, (5, 7))
        assert (await read(service, 5, 0, 0)).status is Status.UNKNOWN
        assert (await append(service, run_of(5, 0, 0), facts=None)).status is Status.UNKNOWN
        assert (await service.wait_lac(7, -1, 0)).status is Status.UNKNOWN
        # The fence itself may be what cannot be read.
        assert (await append(service, run_of(6, 0, 0))).status is Status.UNKNOWN
        assert (await append(service, run_of(7, 4, 4), recovery=True)).status is Status.OK
        assert (await service.fence(7, KEY)).status is Status.OK
        assert (await read(service, newer, 0, 0)).status is Status.NO_SUCH_LEDGER
        assert (await append(service, run_of(newer, 0, 0))).status is Status.OK
        service = await yard.crash()
    await service.clear_damage()
    service = await yard.crash()
    assert not service.damaged
    assert (await read(service, 5, 0, 0)).status is Status.NO_SUCH_LEDGER


async def test_a_ledger_whose_fence_may_be_lost_takes_no_normal_append_after_its_repair() -> None:
    yard = Stable()
    service = await three_batches(yard)
    await yard.tree.session().next_id("/ids/ledger")
    for _ in range(9):
        await yard.tree.session().next_id("/ids/ledger")
    flip(yard.disk, name_of(1), runs_in(yard, service)[1].offset + 10)
    service = await yard.crash()
    await service.clear_damage()
    for _ in range(2):
        assert (await append(service, run_of(6, 0, 0))).status is Status.UNKNOWN
        assert (await append(service, run_of(100, 0, 0))).status is Status.OK
        service = await yard.crash()
    assert (await append(service, run_of(6, 0, 0), recovery=True)).status is Status.OK


@pytest.mark.parametrize("offset", [3, RECORD_HEADER_BYTES - 1])
async def test_a_damaged_batch_header_hides_its_batch_and_is_no_torn_tail(offset: int) -> None:
    yard = Stable()
    service = await three_batches(yard)
    second = runs_in(yard, service)[1]
    flip(yard.disk, name_of(1), second.offset - RECORD_HEADER_BYTES + offset)
    service = await yard.crash()
    assert service.damaged
    assert (await read(service, 7, 4, 7)).unknown == (4, 7)
    assert await read_all(service, 7, 8, 11) == [8, 9, 10, 11]


async def test_a_damaged_batch_in_a_sealed_segment_is_no_torn_tail() -> None:
    yard = Stable(settings=BookieSettings(segment_bytes=600, reserve_bytes=0, ahead_bytes=0))
    service = await three_batches(yard)
    assert len(segments_of(yard.disk)) > 1
    last_of_first = runs_in(yard, service)[-1]
    flip(yard.disk, name_of(1), last_of_first.offset - RECORD_HEADER_BYTES + 1)
    size_bytes = yard.disk.size(name_of(1))
    service = await yard.crash()
    assert service.damaged
    assert yard.disk.size(name_of(1)) == size_bytes


@pytest.mark.parametrize("lost", ["whole", "end"])
async def test_a_missing_or_short_segment_is_damage(lost: str) -> None:
    yard = Stable(settings=BookieSettings(segment_bytes=600, reserve_bytes=0))
    service = await three_batches(yard)
    second = segments_of(yard.disk)[1]
    await append(service, run_of(7, 12, 15))
    await append(service, run_of(7, 16, 19))
    if lost == "whole":
        yard.disk.remove(name_of(second))
        yard.disk.sync_folder("journal")
    else:
        yard.disk.truncate(name_of(second), SEGMENT_HEADER_BYTES + 10)
    service = await yard.crash()
    assert service.damaged
    replies = [await read(service, 7, entry_id, entry_id) for entry_id in range(20)]
    assert any(not reply.runs for reply in replies)
    for entry_id, reply in enumerate(replies):
        assert reply.missing is None
        assert reply.runs or reply.unknown == (entry_id, entry_id)


async def test_a_segment_says_how_long_its_predecessor_was() -> None:
    yard = Stable(settings=BookieSettings(segment_bytes=600, reserve_bytes=0))
    await three_batches(yard)
    second = decode_segment_header(yard.disk.read(name_of(2), 0, SEGMENT_HEADER_BYTES))
    assert second is not None
    assert (second.predecessor, second.predecessor_bytes) == (1, yard.disk.size(name_of(1)))


async def test_a_disk_that_cannot_read_answers_unknown_and_condemns_nothing() -> None:
    yard = Stable()
    service = await three_batches(yard)
    service = await yard.crash()
    yard.disk.reads_fail = True
    reply = await read(service, 7, 0, 3)
    assert (reply.missing, reply.unknown) == (None, (0, 3))
    yard.disk.reads_fail = False
    assert await read_all(service, 7, 0, 11) == list(range(12))


async def test_a_read_whose_segment_has_gone_looks_up_again() -> None:
    yard = Stable()
    service = await three_batches(yard)
    service = await yard.crash()
    whole = yard.disk.read
    failures = [FileNotFoundError(errno.ENOENT, "gone")]

    def read_once_gone(name: str, offset: int, length: int) -> bytes:
        if failures and name.startswith("journal"):
            raise failures.pop()
        return whole(name, offset, length)

    yard.disk.read = read_once_gone  # type: ignore[method-assign]
    assert ids_of(await read(service, 7, 0, 3)) == [0, 1, 2, 3]
    assert not failures


# Failing disks


@pytest.mark.parametrize("operation", [0, 1])
async def test_a_failed_write_or_sync_stops_the_bookie_for_good(operation: int) -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    poll = asyncio.ensure_future(service.wait_lac(7, 100, 60_000))
    yard.disk.fail_after = operation
    asked = [ask(service, run_of(7, 4, 7)), ask(service, run_of(7, 4, 7))]
    fencing = asyncio.ensure_future(service.fence(8, KEY))
    for each in asked:
        assert (await each.reply()).status is Status.UNAVAILABLE
    assert (await fencing).status is Status.UNAVAILABLE
    assert (await poll).status is Status.UNAVAILABLE
    operations = yard.disk.operations
    assert (await append(service, run_of(9, 0, 0))).status is Status.UNAVAILABLE
    assert (await read(service, 7, 0, 3)).status is Status.UNAVAILABLE
    await stable.turns()
    assert await Bookies(yard.tree.session()).available() == {}
    await service.close()
    assert yard.disk.operations == operations


async def test_an_index_that_cannot_be_read_stops_the_bookie_without_an_exception() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the index is gone")

    yard.index.fact = fail  # type: ignore[method-assign, assignment]
    assert (await read(service, 8, 0, 3)).status is Status.UNAVAILABLE
    assert (await service.fence(9, KEY)).status is Status.UNAVAILABLE
    assert (await service.wait_lac(10, -1, 0)).status is Status.UNAVAILABLE
    assert (await append(service, run_of(11, 0, 3))).status is Status.UNAVAILABLE
    service.confirm(12, 3)
    assert not service.writable


async def test_an_index_that_fails_stops_the_bookie() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    await stable.turns()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the index is gone")

    yard.index.apply = fail  # type: ignore[method-assign, assignment]
    await append(service, run_of(7, 4, 7))
    for _ in range(400):
        await asyncio.sleep(0)
        if not service.writable:
            break
    assert (await append(service, run_of(7, 8, 9))).status is Status.UNAVAILABLE


class FullDisk:
    """What the file system says of its room."""

    def __init__(self, yard: Stable, total_bytes: int) -> None:
        self.yard = yard
        self.free_bytes = total_bytes
        self.total_bytes = total_bytes
        yard.disk.space = self.space  # type: ignore[method-assign]

    def space(self) -> Space:
        return Space(self.total_bytes, self.free_bytes)


async def test_a_full_disk_turns_the_bookie_read_only_and_it_comes_back_by_itself() -> None:
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    assert await writable(yard) == [True]
    full.free_bytes = 40_000
    await append(service, run_of(7, 4, 7))
    assert await writable(yard) == [False]
    assert (await append(service, run_of(7, 8, 9))).status is Status.READ_ONLY
    assert (await service.fence(7, KEY)).status is Status.OK
    assert (await append(service, run_of(7, 8, 9), recovery=True)).status is Status.OK
    assert await read_all(service, 7, 0, 9) == list(range(10))
    full.free_bytes = 60_000
    service._publisher.note(full.space())
    assert await writable(yard) == [False]
    full.free_bytes = 80_000
    service._publisher.note(full.space())
    assert await writable(yard) == [True]
    assert (await append(service, run_of(8, 0, 0))).status is Status.OK


async def test_the_last_reserve_is_kept_for_fences() -> None:
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    full.free_bytes = 10_010
    first = ask(service, run_of(7, 4, 7))
    again = ask(service, run_of(7, 4, 7), recovery=True)
    fencing = asyncio.ensure_future(service.fence(7, KEY))
    assert (await first.reply()).status is Status.READ_ONLY
    assert (await again.reply()).status is not Status.OK
    assert (await fencing).status is Status.OK
    assert (await read(service, 7, 4, 7)).missing == (4, 7)
    full.free_bytes = 900_000
    assert (await append(service, run_of(7, 4, 7), recovery=True)).status is Status.OK
    service = await yard.crash()
    assert await read_all(service, 7, 0, 7) == list(range(8))


async def test_a_write_that_meets_a_full_disk_loses_nothing_and_needs_no_restart() -> None:
    yard = Stable()
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    used = yard.disk.total_bytes - yard.disk.room_bytes()
    yard.disk.total_bytes = used + 100
    yard.disk.space = lambda: Space(1 << 40, 1 << 40)  # type: ignore[method-assign]
    refused = ask(service, run_of(8, 0, 9), facts=facts_of(8))
    behind = ask(service, run_of(8, 10, 11))
    assert (await refused.reply()).status is Status.READ_ONLY
    assert (await behind.reply()).status is Status.READ_ONLY
    assert (await read(service, 8, 0, 9)).status is Status.NO_SUCH_LEDGER
    yard.disk.total_bytes = 1 << 30
    service._publisher.note(Space(1 << 40, 1 << 40))
    assert (await append(service, run_of(8, 0, 9))).status is Status.OK
    assert (await append(service, run_of(7, 4, 5))).status is Status.OK
    service = await yard.crash()
    assert not service.damaged
    assert await read_all(service, 8, 0, 9) == list(range(10))
    assert await read_all(service, 7, 0, 5) == list(range(6))


def offsets(found: Sequence[Found]) -> list[int]:
    return [each.offset for each in found]


async def test_an_index_made_anew_finds_everything_in_the_journal() -> None:
    yard = Stable(settings=BookieSettings(segment_bytes=600, reserve_bytes=0))
    service = await three_batches(yard)
    await service.fence(7, KEY)
    before = offsets(runs_in(yard, service))
    await service.close()
    yard.index = type(yard.index)()
    service = await yard.start()
    assert await read_all(service, 7, 0, 11) == list(range(12))
    assert (await append(service, run_of(7, 12, 12))).status is Status.FENCED
    assert offsets(runs_in(yard, service)) == before
