"""Real processes that open a folder and do one thing; started by the tests beside this module.

    python -m tests.engine.cluster.processes append FOLDER     a ledger, and entries without end
    python -m tests.engine.cluster.processes hold FOLDER       opens, then waits
    python -m tests.engine.cluster.processes fork FOLDER       opens, forks, tries in the child

Each line of output tells one thing: `open OWNER`, `ledger ID`, `acknowledged LAST`, `child ...`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import engine
from engine.errors import EngineError

ROOT = Path(__file__).parents[3]


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """What the appending process writes: unlike any other entry."""
    return f"{ledger_id}:{entry_id} ".encode() * (1 + entry_id % 50)


class Started:
    """A process under test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self, word: str) -> str:
        """The rest of the next line that begins with `word`; "" when there is none any more."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            if line.endswith("\n") and line.startswith(f"{word} "):
                return line.removeprefix(f"{word} ").strip()
        return ""

    async def kill(self) -> None:
        """As `kill -9` does."""
        if self.process.returncode is None:
            self.process.kill()
        # Its end is heard once its output is read, of which there may be more than is kept.
        assert self.process.stdout is not None
        while await self.process.stdout.read(1 << 16):
            pass
        await self.process.wait()


@asynccontextmanager
async def started(verb: str, folder: Path) -> AsyncIterator[Started]:
    """Run this module in another process; it is killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.engine.cluster.processes",
        verb,
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
    )
    made = Started(process)
    try:
        yield made
    finally:
        await made.kill()


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def _append(client: engine.Engine) -> None:
    writer = await client.create_ledger()
    _say("ledger", writer.ledger_id)
    ids = iter(range(2**40))

    async def one_caller() -> None:
        for entry_id in ids:
            assert await writer.append(body_of(writer.ledger_id, entry_id)) == entry_id
            _say("acknowledged", entry_id)

    await asyncio.gather(*(one_caller() for _ in range(8)))


async def _fork(client: engine.Engine) -> None:
    writer = await client.create_ledger()
    await writer.append(b"moo")
    _say("ledger", writer.ledger_id)
    child = os.fork()
    if child == 0:
        _in_child(client, writer)
    _say("child", child)
    await asyncio.Event().wait()


def _in_child(client: engine.Engine, writer: engine.LedgerWriter) -> None:
    asyncio.events._set_running_loop(None)
    heard = []
    try:
        asyncio.run(client.list_ledgers())
    except EngineError as error:
        heard.append(type(error).__name__)

    async def append() -> None:
        await writer.append(b"moo")

    try:
        asyncio.run(append())
    except EngineError as error:
        heard.append(type(error).__name__)
    _say("heard", *heard)
    os.close(1)
    os.read(os.pipe()[0], 1)


async def _main(verb: str, folder: str) -> None:
    async with engine.open(folder) as client:
        _say("open", client.owner)
        if verb == "append":
            await _append(client)
        elif verb == "fork":
            await _fork(client)
        else:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
