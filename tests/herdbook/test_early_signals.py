"""SIGHUP that comes while a server is still starting."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from engine.ports.hangup import early, hear_early
from engine.ports.renewing import Renewed
from engine.ports.system_signals import renewed_by_signal

COMMAND = """
import os, signal, sys, types
command = types.ModuleType("herdbook.cli.main")
command.main = lambda: os.kill(os.getpid(), signal.SIGHUP)
sys.modules["herdbook.cli.main"] = command
from herdbook.__main__ import main
sys.argv[1:] = {words!r}
main()
"""
CHILD = """
import os, signal
from herdbook.node import child
def duplicate(descriptor):
    os.kill(os.getpid(), signal.SIGHUP)
    raise SystemExit(0)
child.os.dup = duplicate
child.main()
"""


def status_of(program: str) -> int:
    """How a program ends."""
    return subprocess.run([sys.executable, "-c", program], check=False).returncode


@pytest.fixture
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)
    early.clear()


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--data", "x"],
        ["worker", "mail"],
        ["bookie", "--data", "x"],
        ["herd", "node", "x"],
        ["task", "serve"],
    ],
    ids=" ".join,
)
def test_sighup_does_not_end_a_server_that_is_starting(words: list[str]) -> None:
    assert status_of(COMMAND.format(words=words)) == 0


@pytest.mark.parametrize("words", [[], ["sql"], ["bookie", "list"], ["task", "ls"]], ids=" ".join)
def test_sighup_ends_a_command_whose_terminal_is_gone(words: list[str]) -> None:
    assert status_of(COMMAND.format(words=words)) == -signal.SIGHUP


def test_sighup_does_not_end_a_process_of_a_node_that_is_starting() -> None:
    assert status_of(CHILD) == 0


@pytest.mark.usefixtures("_signals")
async def test_sighup_that_came_early_lets_files_be_read_again_once_there_are_some() -> None:
    hear_early()
    os.kill(os.getpid(), signal.SIGHUP)
    read = asyncio.Event()
    kept = Renewed(read.set)
    read.clear()
    renewed_by_signal()
    async with asyncio.timeout(30):
        await read.wait()
    assert not early and kept.value is None
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
