"""Small records far apart: read one by one, joined, and still judged one by one."""

from collections.abc import Sequence

import msgspec

from engine.bookie.scan import Found, SegmentScan
from engine.bookie.segment import RECORD_HEADER_BYTES, Kind, name_of
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.limits import KIB, RUN_BYTES_MAX, RUN_ENTRIES_MAX
from engine.transport.contract import ReadReply, Status
from tests.engine.bookie.stable import (
    Stable,
    append,
    facts_of,
    flip,
    ids_of,
    read,
    read_all,
    run_of,
)

SMALL, BIG = 7, 8
SETTINGS = BookieSettings(
    index_delay_ms=0,
    synced_mark_ms=60_000,
    space_check_ms=60_000,
    reserve_bytes=0,
    recent_runs_bytes_max=1,
)


class Counted(Stable):
    """Counts what the disk is asked."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)
        self.asked: list[int] = []
        read_each = self.disk.read_each

        def counting(name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            self.asked.append(len(ranges))
            return read_each(name, ranges)

        self.disk.read_each = counting  # type: ignore[method-assign]


async def interleaved(
    yard: Stable, runs: int, stripe_entries: int = 256, *, entries: int = 1, size: int = 40
) -> BookieService:
    """A ledger of small runs, each far from the next."""
    service = await yard.start()
    facts = msgspec.structs.replace(facts_of(SMALL), stripe_entries=stripe_entries)
    for number in range(runs):
        first = number * entries
        small = run_of(SMALL, first, first + entries - 1, size=size)
        await append(service, small, facts=facts)
        await append(service, run_of(BIG, number, number, size=40 * KIB))
    await service.storage.writer.flush()
    return service


def places(yard: Stable, service: BookieService) -> list[int]:
    """The offsets of the small ledger's records."""
    scan = SegmentScan(yard.disk, 1, service.identity.salt)
    return [
        found.offset
        for found in scan.records()
        if isinstance(found, Found)
        and found.header.kind == Kind.RUN
        and found.header.ledger_id == SMALL
    ]


async def read_small(service: BookieService, first: int, last: int) -> ReadReply:
    reply = await read(service, SMALL, first, last)
    assert reply.status is Status.OK
    return reply


async def test_small_records_far_apart_come_as_one_run() -> None:
    yard = Counted()
    service = await interleaved(yard, 20)
    reply = await read_small(service, 0, 19)
    assert ids_of(reply) == list(range(20))
    assert [(run.first, run.count, run.lac) for run in reply.runs] == [(0, 20, -1)]
    assert reply.runs[0].length == run_of(SMALL, 19, 19).length
    assert yard.asked == [19], "the first one finds the segment, the others come together"


async def test_no_joined_run_crosses_a_stripe() -> None:
    yard = Counted()
    service = await interleaved(yard, 10, stripe_entries=4)
    reply = await read_small(service, 0, 9)
    assert ids_of(reply) == list(range(10))
    assert [(run.first, run.last) for run in reply.runs] == [(0, 3), (4, 7), (8, 9)]


async def test_a_part_of_them_is_read_without_the_rest() -> None:
    yard = Counted()
    service = await interleaved(yard, 10)
    reply = await read_small(service, 3, 6)
    assert ids_of(reply) == [3, 4, 5, 6] and reply.missing is None
    assert ids_of(await read_small(service, 8, 30)) == [8, 9]


async def test_the_first_damaged_one_is_unknown_and_those_before_it_are_read() -> None:
    for inside in (0, 8, RECORD_HEADER_BYTES + 1):
        yard = Counted()
        service = await interleaved(yard, 10)
        flip(yard.disk, name_of(1), places(yard, service)[6] + inside)
        reply = await read_small(service, 0, 9)
        assert ids_of(reply) == [0, 1, 2, 3, 4, 5]
        assert reply.unknown == (6, 6) and reply.missing is None
        assert ids_of(await read_small(service, 7, 9)) == [7, 8, 9]


async def test_a_record_that_was_put_in_anothers_place_is_not_read_there() -> None:
    yard = Counted()
    service = await interleaved(yard, 10)
    offsets = places(yard, service)
    size = offsets[0], RECORD_HEADER_BYTES + 8 + 40
    data = yard.disk.read(name_of(1), *size)
    inode = yard.disk._inode(name_of(1))
    inode.data[offsets[5] : offsets[5] + len(data)] = data
    reply = await read_small(service, 0, 9)
    assert ids_of(reply) == [0, 1, 2, 3, 4] and reply.unknown == (5, 5)


async def test_a_disk_that_cannot_be_read_makes_them_unknown() -> None:
    yard = Counted()
    service = await interleaved(yard, 10)
    yard.disk.reads_fail = True
    reply = await read_small(service, 0, 9)
    assert reply.runs == () and reply.unknown == (0, 0)
    yard.disk.reads_fail = False
    assert ids_of(await read_small(service, 0, 9)) == list(range(10))


async def test_a_read_of_many_small_runs_goes_on_where_its_bytes_were_enough() -> None:
    yard = Counted()
    service = await interleaved(yard, 30)
    reply = await read(service, SMALL, 0, 29, max_bytes=400)
    first = ids_of(reply)
    assert 0 < len(first) < 30 and reply.missing is None and reply.unknown is None
    assert await read_all(service, SMALL, len(first), 40) == list(range(len(first), 30))


def rot(yard: Stable, service: BookieService) -> None:
    """Entry 10, the third of its record of four, loses a bit."""
    at = places(yard, service)[2] + RECORD_HEADER_BYTES + 4 * 8 + 2 * 40 + 1
    flip(yard.disk, name_of(1), at)


async def test_a_record_of_which_a_part_was_written_again_gives_only_what_is_still_its_own() -> (
    None
):
    yard = Counted()
    service = await interleaved(yard, 5, entries=4)
    rot(yard, service)
    assert (await append(service, run_of(SMALL, 8, 11), recovery=True)).status is Status.OK
    await service.storage.writer.flush()
    for _ in range(2):
        assert await read_all(service, SMALL, 0, 19) == list(range(20))
        reply = await read_small(service, 0, 9)
        assert ids_of(reply) == list(range(10))
        service = await yard.crash()
        assert service.failure is None


async def test_what_is_damaged_behind_the_cut_of_a_record_is_unknown_and_no_more() -> None:
    yard = Counted()
    service = await interleaved(yard, 5, entries=4)
    rot(yard, service)
    state = service.storage.states.get(SMALL)
    await service.storage.find(state, 0, 19, 1 << 20, verify=True)
    await service.storage.writer.flush()
    reply = await read_small(service, 0, 19)
    assert ids_of(reply) == list(range(10)) and reply.unknown == (10, 11)


async def test_a_joined_run_keeps_to_the_bounds_of_a_run() -> None:
    yard = Counted()
    service = await interleaved(yard, 60, entries=2, size=5_000)
    reply = await read_small(service, 0, 119)
    assert await read_all(service, SMALL, 0, 119) == list(range(120))
    assert all(len(run.body) <= RUN_BYTES_MAX for run in reply.runs)
    yard = Counted()
    service = await interleaved(yard, 300, stripe_entries=1_024)
    reply = await read_small(service, 0, 299)
    assert max(run.count for run in reply.runs) == RUN_ENTRIES_MAX
    assert ids_of(reply) == list(range(300))


async def test_what_is_not_in_the_index_yet_makes_no_gap_before_it_missing() -> None:
    yard = Counted()
    service = await yard.start()
    for entry_id in range(20):
        await append(service, run_of(SMALL, entry_id, entry_id))
    await service.storage.writer.flush()
    yard.workers.threads["index"].held = True
    await append(service, run_of(SMALL, 20, 20))
    reply = await read(service, SMALL, 0, 20, max_bytes=400)
    assert 0 < len(ids_of(reply)) < 20
    assert reply.missing is None and reply.unknown is None
