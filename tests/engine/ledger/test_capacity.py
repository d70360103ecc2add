"""Whether there is space for new data, on this machine's disks and on those of the bookies."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.bookie.settings import BookieSettings
from engine.errors import DiskFull, EngineError
from engine.ledger.capacity import Capacity, require_room, watched
from engine.metadata.bookies import Registration
from engine.ports.disk import Space
from engine.ports.system_disk import SystemDisk, disk_full_error
from engine.ports.system_workers import ThreadWorkers
from tests.simulation.virtual import elapse, virtually

R = TypeVar("R")
MIB = 1024 * 1024
SETTINGS = BookieSettings().keeping(100 * MIB)


class Disk(SystemDisk):
    """A disk that says of its room what it is told to say."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__(Path("data"))
        self.free_bytes = free_bytes
        self.asked = 0
        self.error: OSError | None = None

    def space(self) -> Space:
        """What it was told."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return Space(1_000 * MIB, self.free_bytes)


class HangingDisk(Disk):
    """A disk that does not answer before it is told to."""

    def __init__(self) -> None:
        super().__init__(0)
        self.answers = threading.Event()

    def space(self) -> Space:
        """What it was told, when it was told."""
        self.asked += 1
        self.answers.wait()
        return Space(1_000 * MIB, self.free_bytes)


class Pool:
    """Threads in virtual time."""

    batcher: Any = None

    async def run(self, work: Callable[[], R]) -> R:
        """See `Workers`."""
        await elapse(0.01)
        return work()


def short(capacity: Capacity) -> tuple[bool, bool]:
    """Whether new data finds no room, and whether not even deletions do."""
    return bool(capacity.lack), bool(capacity.exhausted)


def registered(*states: str) -> dict[str, Registration]:
    """Bookies that are writable, full or exhausted, by their names."""
    return {
        f"b{number}": Registration(
            f"b{number}", 1, writable=state == "writable", exhausted=state == "exhausted"
        )
        for number, state in enumerate(states)
    }


def test_below_the_reserve_of_a_disk_new_data_is_refused_with_its_path_and_the_bytes() -> None:
    disk = Disk(100 * MIB)
    shown = watched(Path("/data"), disk, SETTINGS)
    capacity = Capacity(1)
    capacity.look(shown)
    capacity.check()
    disk.free_bytes = 99 * MIB
    capacity.look(shown)
    with pytest.raises(DiskFull, match=r"/data has 103,809,024 bytes free.* 104,857,600 are kept"):
        capacity.check()
    capacity.check_log()
    disk.free_bytes = 15 * MIB
    capacity.look(shown)
    with pytest.raises(DiskFull, match="not even deletions can be stored"):
        capacity.check_log()
    # It comes back by itself, and not at the first byte.
    disk.free_bytes = 150 * MIB
    capacity.look(shown)
    assert "until as many again are free" in capacity.lack
    assert not capacity.exhausted
    disk.free_bytes = 200 * MIB
    capacity.look(shown)
    assert not capacity.lack


def test_a_disk_is_looked_at_from_the_start_and_until_the_end_of_the_block() -> None:
    async def script() -> None:
        disk, capacity = Disk(15 * MIB), Capacity(1)
        async with capacity.watching([watched(Path("/data"), disk, SETTINGS)], Pool()):
            assert short(capacity) == (True, True)
            disk.free_bytes = 900 * MIB
            # As long as it is short it is looked at more often.
            await elapse(0.05)
            assert short(capacity) == (False, False)
            disk.free_bytes = 90 * MIB
            await elapse(0.3)
            assert short(capacity) == (True, False)
        assert short(capacity) == (False, False)
        asked = disk.asked
        await elapse(10)
        assert disk.asked == asked

    virtually(script())


def test_who_asks_does_not_look_at_the_disk_itself() -> None:
    async def script() -> None:
        disk, capacity = Disk(90 * MIB), Capacity(1)
        async with capacity.watching([watched(Path("/data"), disk, SETTINGS)], Pool()):
            asked = disk.asked
            for _ in range(100):
                assert capacity.lack
                capacity.check_log()
                with pytest.raises(DiskFull):
                    capacity.check()
            assert disk.asked == asked

    virtually(script())


def test_a_disk_that_fails_is_not_called_full() -> None:
    async def script() -> None:
        disk, capacity = Disk(0), Capacity(1)
        async with capacity.watching([watched(Path("/data"), disk, SETTINGS)], Pool()):
            assert short(capacity) == (True, True)
            disk.error = OSError("no such disk")
            await elapse(0.3)
            assert short(capacity) == (False, False)

    virtually(script())


@pytest.mark.real_time
async def test_a_disk_that_hangs_stops_neither_the_loop_nor_looks_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.ledger.capacity._LOOK_S", 0.0)
    monkeypatch.setattr("engine.ledger.capacity._FIRST_LOOK_S", 0.05)
    hanging, other, capacity = HangingDisk(), Disk(900 * MIB), Capacity(1)
    disks = [watched(Path("/hangs"), hanging, SETTINGS), watched(Path("/data"), other, SETTINGS)]
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with asyncio.timeout(30), capacity.watching(disks, workers):
            assert hanging.asked == 1
            assert short(capacity) == (False, False)
            other.free_bytes = 90 * MIB
            while not short(capacity)[0]:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert "/data" in capacity.lack
    finally:
        hanging.answers.set()
        await workers.close()
    assert hanging.asked == 1


@pytest.mark.parametrize(
    ("states", "lack", "exhausted"),
    [
        (("writable", "writable", "full"), False, False),
        (("writable", "full", "full"), True, False),
        (("full", "exhausted", "exhausted"), True, True),
        (("full", "full", "exhausted"), True, False),
        # Too few are there at all: that is another trouble, which others tell of.
        (("writable",), False, False),
        ((), False, False),
    ],
)
def test_new_data_needs_as_many_bookies_with_room_as_acknowledge(
    states: tuple[str, ...], lack: bool, exhausted: bool
) -> None:
    capacity = Capacity(2)
    capacity.note(registered(*states))
    assert bool(capacity.lack) is lack
    assert bool(capacity.exhausted) is exhausted


def test_bookies_that_are_to_go_count_for_nothing() -> None:
    capacity = Capacity(1)
    capacity.note(registered("writable", "full"), leaving=["b0"])
    assert "1 of 1 bookies have full disks (b1)" in capacity.lack


def test_a_start_says_which_folder_needs_how_much() -> None:
    disk = Disk(18 * MIB)
    require_room(Path("/data"), disk, SETTINGS)
    disk.free_bytes -= 1
    with pytest.raises(DiskFull, match="/data cannot be opened: a start needs 18,874,368 bytes"):
        require_room(Path("/data"), disk, SETTINGS)


def test_the_reserve_is_what_an_operator_says_or_usual_for_the_size_of_the_disk() -> None:
    usual = BookieSettings()
    assert usual.keeping(0) is usual
    assert usual.kept_bytes(100_000 * MIB) == 1_024 * MIB
    assert usual.kept_bytes(1_000 * MIB) == pytest.approx(50 * MIB, rel=0.01)
    assert usual.kept_bytes(10 * MIB) == 16 * MIB
    told = usual.keeping(8 * MIB)
    assert told.kept_bytes(100_000 * MIB) == told.kept_bytes(100 * MIB) == 8 * MIB
    assert told.reserve_bytes == 2 * MIB


def test_a_full_disk_is_an_error_of_the_engine_and_of_the_system(tmp_path: Path) -> None:
    error = disk_full_error(tmp_path / "gone")
    kinds = type(error).__mro__
    assert EngineError in kinds and OSError in kinds
    assert str(error).startswith(f"{tmp_path / 'gone'} cannot be written")
    again = type(error)(*error.args)
    assert (str(again), again.errno) == (str(error), error.errno)
