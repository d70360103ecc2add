"""Nodes of tablespaces as processes, and clients that transfer between accounts over the wire.

Invariants:
- Every process is a child of this one and is stopped by its process id.
- A transfer whose commit has no known outcome changes nothing that a sum could show.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from herd.errors import CommitUnknown, Error
from herd.nodes import SpaceCommands
from herd.wire.cluster import ClusterHerd
from tests.acceptance.machines import ROOT, Process, free_port

ACCOUNTS: Final = 10
START: Final = 1_000
_THINK_S: Final = 0.01
_PAUSE_S: Final = 0.02
_TRIES: Final = 10


class NodeProcess(Process):
    """One `herdbook herd node`."""

    def __init__(self, number: int, folder: Path, url: str) -> None:
        self.port = free_port()
        self.address = f"tcp:127.0.0.1:{self.port}"
        super().__init__(
            folder / f"node-{number}.log",
            *("herdbook", "herd", "node", "--data", str(folder / f"node-{number}")),
            *("--url", url, "--listen", f"127.0.0.1:{self.port}"),
            *("--replica-grace-ms", "600000"),
        )


class Bank:
    """Accounts in a tablespace, and clients that transfer between them."""

    def __init__(self, herd: ClusterHerd, tablespace: str) -> None:
        self.herd = herd
        self.tablespace = tablespace
        self.transfers = 0
        self.unknown = 0
        self.errors: list[Error] = []
        self.sums = {False: 0, True: 0}
        """How often the leader's accounts were added up, and a follower's."""
        self.refused: Counter[str] = Counter()
        self.last_s = 0.0
        self.ending = False

    async def open(self) -> None:
        """Make the accounts, however often the first leaders change on a busy machine."""
        session = await self.herd.session(self.tablespace)
        rows = [(number, START) for number in range(ACCOUNTS)]
        for text, many in (
            ("CREATE TABLE IF NOT EXISTS account (id INT PRIMARY KEY, money INT NOT NULL)", ()),
            ("INSERT INTO account VALUES (?, ?) ON CONFLICT DO NOTHING", rows),
        ):
            for _ in range(_TRIES):
                try:
                    if many:
                        await session.execute_many(text, many)
                    else:
                        await session.execute(text)
                    break
                except Error as error:
                    assert error.retryable or isinstance(error, CommitUnknown), error
                    await asyncio.sleep(_PAUSE_S)
        await session.close()

    async def client(self, name: str) -> None:
        """Transfer until it is over."""
        rng = random.Random(name)
        session = await self.herd.session(self.tablespace)
        while not self.ending:
            await asyncio.sleep(_THINK_S * rng.random())
            one, two = sorted(rng.sample(range(ACCOUNTS), 2))
            began_s = asyncio.get_running_loop().time()
            try:
                await session.execute("BEGIN")
                for account, change in ((one, -1), (two, 1)):
                    await session.execute(
                        "UPDATE account SET money = money + ? WHERE id = ?", [change, account]
                    )
                await session.commit()
            except Error as error:
                self.errors.append(error)
                self.unknown += isinstance(error, CommitUnknown)
                try:
                    await session.rollback()
                except Error:
                    await asyncio.sleep(_PAUSE_S)
            else:
                self.transfers += 1
                self.last_s = max(self.last_s, began_s)
        await session.close()

    async def reader(self, *, follower: bool) -> None:
        """Add all accounts up until it is over: no moment has more or less money."""
        session = await self.herd.session(self.tablespace, follower=follower)
        while not self.ending:
            await asyncio.sleep(_THINK_S)
            try:
                found = await session.execute("SELECT sum(money), count(*) FROM account")
            except Error as error:
                self.refused[type(error).__name__] += 1
                continue
            if follower and not self.sums[True] and list(found.rows) == [(None, 0)]:
                # It has not heard of the accounts yet.
                continue
            assert list(found.rows) == [(ACCOUNTS * START, ACCOUNTS)], list(found.rows)
            if follower:
                assert session.position is not None
            self.sums[follower] += 1
        await session.close()

    async def total(self) -> int:
        """The sum as the leader has it."""
        session = await self.herd.session(self.tablespace)
        try:
            found = await session.execute("SELECT sum(money) FROM account")
            return int(found.rows[0][0])
        finally:
            await session.close()


async def command(url: str, *words: str) -> list[dict[str, Any]]:
    """What `herdbook herd` answers with --json, if it does; it has to work."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "herdbook", "herd", *words, "--url", url),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, wrong = await process.communicate()
    assert process.returncode == 0, (words, wrong.decode())
    return [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]


async def leader_of(commands: SpaceCommands, name: str, among: list[NodeProcess]) -> NodeProcess:
    """Which process leads, waiting for it."""
    address = await commands.until_led(name, 30_000)
    return next(each for each in among if each.address == address)
