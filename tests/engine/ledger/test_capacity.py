"""Whether there is space for new data, on this machine's disks and on those of the bookies."""

from pathlib import Path

import pytest

from engine.bookie.settings import BookieSettings
from engine.errors import DiskFull, EngineError
from engine.ledger.capacity import Capacity, require_room, watched
from engine.metadata.bookies import Registration
from engine.ports.clock import SystemClock
from engine.ports.disk import Space
from engine.ports.system_disk import SystemDisk, disk_full_error

MIB = 1024 * 1024
SETTINGS = BookieSettings().keeping(100 * MIB)


class ManualClock(SystemClock):
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """What it was set to."""
        return self.now_s


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


def registered(*states: str) -> dict[str, Registration]:
    """Bookies that are writable, full or exhausted, by their names."""
    return {
        f"b{number}": Registration(
            f"b{number}", 1, writable=state == "writable", exhausted=state == "exhausted"
        )
        for number, state in enumerate(states)
    }


def test_below_the_reserve_of_a_disk_new_data_is_refused_with_its_path_and_the_bytes() -> None:
    clock, disk = ManualClock(), Disk(100 * MIB)
    capacity = Capacity(clock, 1)
    end = capacity.watch(watched(Path("/data"), disk, SETTINGS))
    capacity.check()
    disk.free_bytes = 99 * MIB
    capacity.check()
    clock.now_s += 1
    with pytest.raises(DiskFull, match=r"/data has 103,809,024 bytes free.* 104,857,600 are kept"):
        capacity.check()
    capacity.check_log()
    # From now on it is asked each time.
    disk.free_bytes = 15 * MIB
    with pytest.raises(DiskFull, match="not even deletions can be stored"):
        capacity.check_log()
    # It comes back by itself, and not at the first byte.
    disk.free_bytes = 150 * MIB
    assert "until as many again are free" in capacity.lack
    assert not capacity.exhausted
    disk.free_bytes = 200 * MIB
    assert not capacity.lack
    disk.free_bytes = 0
    end()
    capacity.check()


def test_a_disk_is_not_asked_for_each_write_and_one_that_fails_is_not_called_full() -> None:
    clock, disk = ManualClock(), Disk(900 * MIB)
    capacity = Capacity(clock, 1)
    capacity.watch(watched(Path("/data"), disk, SETTINGS))
    assert not any(capacity.lack for _ in range(100))
    assert disk.asked == 1
    clock.now_s += 1
    disk.free_bytes = 0
    assert capacity.lack
    disk.error = OSError("no such disk")
    assert not capacity.lack


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
    capacity = Capacity(ManualClock(), 2)
    capacity.note(registered(*states))
    assert bool(capacity.lack) is lack
    assert bool(capacity.exhausted) is exhausted


def test_bookies_that_are_to_go_count_for_nothing() -> None:
    capacity = Capacity(ManualClock(), 1)
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
