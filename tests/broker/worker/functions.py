"""What the workers of these tests run: well-behaved functions, and all the others."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from broker.worker import GiveUp, TaskContext, TryLater, task
from broker.worker.watcher import VARIABLE

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


@task
def leave_children(note: str) -> None:
    """Starts a process in its own group and one in its own session; returns their ids."""
    sleeping = [sys.executable, "-c", "import signal; signal.pause()"]
    near = subprocess.Popen(sleeping)
    far = subprocess.Popen(sleeping, start_new_session=True)
    _note(note, f"{os.getpid()} {near.pid} {far.pid}\n")
    threading.Event().wait()


@task
def leave_on_purpose(note: str) -> None:
    """Starts a process that is to live on, as its environment says, and ends."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    sleeping = [sys.executable, "-c", "import signal; signal.pause()"]
    left = subprocess.Popen(sleeping, start_new_session=True, env=environment)
    _note(note, str(left.pid))


@task
def held_in_a_call(note: str) -> None:
    """One call that does not let go of the interpreter for minutes."""
    _note(note, f"{os.getpid()}\n")
    re.match(r"(a+)+$", "a" * 40 + "b")


def _note(file: str, text: str = "") -> None:
    if file:
        Path(file).write_text(text or str(os.getpid()))


def _there(file: str) -> bool:
    return Path(file).exists()
