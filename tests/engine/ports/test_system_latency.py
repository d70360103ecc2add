"""Processors wake quickly while something is done, and sleep as ever when nothing is."""

import asyncio
import logging
import os
import struct
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from engine.ports import system_latency
from engine.ports.system_latency import DEVICE, CpuLatency, quick_while_busy
from tests.engine.ports.open_files import is_open


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """What stands in the place of the machine's."""
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    return device


def bound_us() -> int:
    """What holds for this machine now, by whoever asks for the least."""
    return int(struct.unpack("=i", DEVICE.read_bytes()[:4])[0])


def test_the_machine_has_the_bound_from_the_asking_to_the_letting_go() -> None:
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        # As in a container: what follows is told by the other tests, of a file in its place.
        with pytest.raises(InvalidRequest, match="cannot ask processors to wake quickly"):
            CpuLatency(7, DEVICE / "none")
        return
    bound = CpuLatency(7)
    assert not is_open(DEVICE)
    bound.ask()
    bound.ask()
    assert is_open(DEVICE) and bound_us() <= 7
    bound.let_go()
    assert not is_open(DEVICE)


def test_who_cannot_ask_learns_it_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no such file: .*/none"):
        CpuLatency(0, tmp_path / "none")
    with pytest.raises(InvalidRequest, match="let this user write there"):
        CpuLatency(0, tmp_path)


def test_what_is_asked_stands_in_the_file_as_the_machine_reads_it(device: Path) -> None:
    CpuLatency(300, device)
    assert struct.unpack("=i", device.read_bytes()) == (300,)


def test_a_machine_that_cannot_be_asked_any_more_is_said_and_nothing_fails(
    device: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latency = CpuLatency(0, device)
    device.unlink()
    with caplog.at_level(logging.WARNING):
        latency.ask()
        latency.ask()
    assert not latency.asked
    assert caplog.text.count("not asked to wake quickly any more") == 1
    latency.let_go()


async def test_it_is_asked_while_something_is_done_and_let_go_at_rest_and_at_the_end(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_latency, "LOOK_MS", 0)
    latency = CpuLatency(0, device)
    done = iter([0, 1, 2, 2, 2, 3])
    asked: list[bool] = []
    over = asyncio.Event()

    def progress() -> int:
        asked.append(latency.asked)
        if len(asked) == 7:
            over.set()
        return next(done, 9 + len(asked))

    async with quick_while_busy(latency, progress):
        await over.wait()
        assert asked == [False, False, True, True, False, False, True]
    looks = len(asked)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not latency.asked and len(asked) == looks


async def test_without_a_bound_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_latency, "LOOK_MS", 0)
    looks: list[None] = []
    async with quick_while_busy(None, lambda: looks.append(None)):
        for _ in range(3):
            await asyncio.sleep(0)
    assert looks == []
