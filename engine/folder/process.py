"""An engine in a process of its own: `python -m engine.folder.process`, made by `open`.

Invariants:
- The child owns the folder as long as its parent lives: it ends when its standard input does.
- It never writes to a terminal; what goes wrong at its start it tells its parent, in one line.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from engine import errors
from engine.errors import EngineError, FolderError
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
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(Order(str(root), settings)) + b"\n")
    child.stdin.flush()
    return child


def let_go(child: "subprocess.Popen[bytes]") -> EngineError | None:
    """End a child, wait for it, and tell what went wrong in it, if it could say."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.close()
    said = child.stdout.read()
    child.stdout.close()
    child.wait()
    try:
        name, text = msgspec.json.decode(said, type=tuple[str, str])
    except msgspec.DecodeError:
        return None
    kind = getattr(errors, name, FolderError)
    assert issubclass(kind, EngineError)
    return kind(text)


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
        try:
            runner.run(serve(msgspec.json.decode(line, type=Order)))
        except EngineError as error:
            sys.stdout.buffer.write(msgspec.json.encode((type(error).__name__, str(error))))
            sys.exit(1)


if __name__ == "__main__":
    main()
