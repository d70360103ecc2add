"""What a server of bookies is told of its machine."""

import os
import subprocess
import sys

import pytest

from engine.errors import InvalidRequest
from engine.server_settings import keep_to


def test_a_server_keeps_to_its_processors_and_interrupts_nobody_there() -> None:
    script = (
        "import os, threading\n"
        "from engine.server_settings import keep_to\n"
        "cpu = max(os.sched_getaffinity(0))\n"
        "keep_to(frozenset([cpu]))\n"
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join()\n"
        "assert found == [{cpu}] == [os.sched_getaffinity(0)], found\n"
        "assert os.sched_getscheduler(0) == os.SCHED_BATCH\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_without_processors_nothing_is_changed() -> None:
    before = os.sched_getaffinity(0)
    keep_to(frozenset())
    assert os.sched_getaffinity(0) == before and os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_processor_that_is_not_there_is_refused() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(InvalidRequest, match="processors 99999"):
        keep_to(frozenset([99_999]))
    assert os.sched_getaffinity(0) == before
