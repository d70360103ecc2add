"""Power goes again while a bookie starts, wherever in it: nothing acknowledged is lost."""

import errno

import pytest

from engine.bookie.segment import name_of
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.errors import BookieUnavailable, Overloaded
from engine.ports.disk import Space
from engine.transport.contract import Status
from tests.engine.bookie.stable import Stable, append, read_all, run_of
from tests.simulation.disk import PowerLoss, SimAppendFile

SEEDS = 25
OPERATIONS = 8


async def acknowledged(seed: int, batches: int, ahead_bytes: int = 16_000) -> Stable:
    """A bookie that lost power behind so many acknowledged batches of four entries."""
    settings = BookieSettings(index_delay_ms=0, reserve_bytes=0, ahead_bytes=ahead_bytes)
    yard = Stable(seed, settings)
    service = await yard.start()
    for first in range(0, 4 * batches, 4):
        await append(service, run_of(7, first, first + 3, size=400))
    end(yard)
    yard.disk.lose_power()
    yard.index.crash()
    return yard


def end(yard: Stable) -> None:
    """The process ends."""
    for thread in yard.workers.threads.values():
        thread.dead = True


async def lose_power_in_start(yard: Stable, operation: int) -> None:
    """Start, and lose power at this disk operation, if there are so many, or behind the start."""
    yard.disk.lose_power_after = operation
    try:
        await yard.start()
    except (PowerLoss, BookieUnavailable):
        # In the journal's thread it is the journal that fails.
        pass
    end(yard)
    yard.disk.lose_power()
    yard.index.crash()


async def check(yard: Stable, service: BookieService, entries: int) -> None:
    """All is there, and nobody is told of damage."""
    assert await read_all(service, 7, 0, entries) == list(range(entries))
    assert not service.damaged


@pytest.mark.parametrize("batches", [1, 2])
async def test_power_lost_in_a_start_loses_nothing_acknowledged(batches: int) -> None:
    for seed in range(SEEDS):
        for operation in range(OPERATIONS):
            yard = await acknowledged(seed, batches)
            await lose_power_in_start(yard, operation)
            await check(yard, await yard.start(), 4 * batches)


async def test_a_first_segment_that_no_sync_reached_is_no_damage_once_it_is_lost() -> None:
    yard = Stable(1, BookieSettings(index_delay_ms=0, reserve_bytes=0))
    service = await yard.start()
    # Behind the making of the file and the write.
    yard.disk.fail_after = 2
    assert (await append(service, run_of(7, 0, 3, size=400))).status is Status.UNAVAILABLE
    end(yard)
    yard.disk.fail_after = None
    # What the failed sync left is seen, and cannot be written again: the disk is full.
    roomy_bytes, yard.disk.total_bytes = yard.disk.total_bytes, 600
    with pytest.raises(Overloaded):
        await yard.start()
    end(yard)
    yard.disk.lose_power()
    yard.index.crash()
    yard.disk.total_bytes = roomy_bytes
    service = await yard.start()
    assert not service.damaged
    assert (await append(service, run_of(7, 0, 3, size=400))).status is Status.OK


async def test_what_could_not_be_written_again_on_a_full_disk_is_not_sealed_off() -> None:
    yard = await acknowledged(1, 2, ahead_bytes=0)
    roomy_bytes = yard.disk.total_bytes
    # Room for a mark, not for the batch.
    yard.disk.total_bytes = roomy_bytes - yard.disk.room_bytes() + 400
    for _ in range(2):
        with pytest.raises(Overloaded):
            await yard.start()
    yard.disk.total_bytes = roomy_bytes
    await check(yard, await yard.start(), 8)


async def test_what_is_to_be_written_again_stays_while_no_segment_can_be_made() -> None:
    yard = await acknowledged(1, 2)

    def full(name: str, *, create: bool) -> SimAppendFile:
        raise OSError(errno.ENOSPC, "simulated: no room for a file")

    yard.disk.open_append = full  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(Overloaded):
            await yard.start()
    del yard.disk.open_append
    await check(yard, await yard.start(), 8)


async def test_a_roll_that_found_the_disk_full_leaves_marks_to_the_old_segment() -> None:
    yard = Stable(1, BookieSettings(index_delay_ms=0, reserve_bytes=0, segment_bytes=4_000))
    service = await yard.start()
    for first in (0, 4):
        assert (await append(service, run_of(7, first, first + 3, size=400))).status is Status.OK
    # Room for a mark, not for a batch that needs a new segment; nobody looked at the disk yet.
    yard.disk.total_bytes -= yard.disk.room_bytes() - 700
    yard.disk.space = lambda: Space(1 << 40, 1 << 40)  # type: ignore[method-assign]
    refused = await append(service, run_of(7, 8, 13, size=400))
    assert refused.status is Status.READ_ONLY and yard.segments() == [name_of(1)[8:]]
    await service.close()
    service = await yard.start()
    assert await read_all(service, 7, 0, 7) == list(range(8))
