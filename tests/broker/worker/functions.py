"""What the workers of these tests run: well-behaved functions, and all the others."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

from broker.worker import GiveUp, TaskContext, TryLater, task

_meeting = threading.Barrier(4)
_hoard: list[bytes] = []


@task
def add(left: int, right: int) -> int:
    return left + right


@task
async def add_later(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


@task
def echo(data: bytes) -> bytes:
    return data


@task
def token(context: TaskContext) -> list[int]:
    return list(context.token)


@task(give_up_on=(ZeroDivisionError,))
def divide(left: int, right: int) -> float:
    return left / right


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def fail_for_now() -> None:
    raise TryLater("not yet", after_ms=1_500)


@task
def fail_for_good() -> None:
    raise GiveUp("never")


@task
def huge() -> bytes:
    return bytes(1024 * 1024 + 1)


@task
def meet() -> int:
    """Returns when four of them run at once."""
    return int(_meeting.wait(30) >= 0)


@task
def block(note: str = "") -> None:
    """Never returns; says in a file that it began."""
    _note(note)
    threading.Event().wait()


@task
async def until_gone(note: str) -> None:
    """Says in a file that it began, and returns when somebody removes that."""
    _note(note)
    while _there(note):  # noqa: ASYNC110 (nothing else tells of it)
        await asyncio.sleep(0)


@task
def until_gone_plain(note: str) -> None:
    """The same, in a thread."""
    _note(note)
    while _there(note):
        threading.Event().wait(0.001)


@task
async def wait_for_ever(note: str = "") -> None:
    _note(note)
    await asyncio.Event().wait()


@task
async def resist() -> None:
    """A coroutine that takes no hint."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@task
def exit_now(status: int) -> None:
    os._exit(status)


@task
def hoard(size_bytes: int) -> None:
    _hoard.append(bytearray(size_bytes))  # type: ignore[arg-type]
    threading.Event().wait()


@task
def hog() -> int:
    """Lets no other thread of its process do anything."""
    return sum(range(10**12))


@task
def leave_a_child(note: str) -> None:
    """Starts a process that would outlive this one."""
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    _note(note, str(left.pid))
    threading.Event().wait()


def _note(file: str, text: str = "") -> None:
    if file:
        Path(file).write_text(text or str(os.getpid()))


def _there(file: str) -> bool:
    return Path(file).exists()
