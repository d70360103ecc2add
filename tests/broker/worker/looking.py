"""Of processes outside only looking again tells what they have come to."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    while not condition():  # noqa: ASYNC110 (nothing else tells of it)
        await asyncio.sleep(0)


async def began(note: Path) -> int:
    """The number of a process that writes it into a file."""
    await until(lambda: note.exists() and note.read_text() != "")
    return read_number(note)


def read_number(note: Path) -> int:
    """The number in a file."""
    return int(note.read_text())


def alive(process_id: int) -> bool:
    """Whether there is such a process, be it one that nobody has reaped."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def gone(process_id: int) -> bool:
    """Whether a process runs no more."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True
