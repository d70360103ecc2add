"""An engine in a process of its own: `python -m engine.folder.process`, made by `open`.

Invariants:
- The child owns the folder as long as its parent lives: it ends when its standard input does.
- It never writes to a terminal; what goes wrong at its start is for its parent to find out.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from engine.folder.owner import FolderSettings


class Order(msgspec.Struct, frozen=True):
    """The first line of the child's standard input."""

    root: str
    settings: FolderSettings


def spawn(root: Path, settings: FolderSettings) -> "subprocess.Popen[bytes]":
    """Start a child that owns the folder."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    child = subprocess.Popen(
        [sys.executable, "-m", "engine.folder.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(Order(str(root), settings)) + b"\n")
    child.stdin.flush()
    return child


async def serve(order: Order) -> None:
    """Own the folder until standard input ends."""
    from engine import cluster

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    class Parent(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            over.set()

    async with cluster.open(order.root, folder_settings=order.settings):
        await loop.connect_read_pipe(Parent, sys.stdin)
        await over.wait()


def main() -> None:
    """Run the child."""
    from engine.ports.system_loop import new_event_loop

    line = sys.stdin.buffer.readline()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(msgspec.json.decode(line, type=Order)))


if __name__ == "__main__":
    main()
