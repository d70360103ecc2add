"""What the workers do: send messages, which here is to read, parse, count and hash them.

Invariants:
- A message counts once, however often a task is tried: one transaction moves its row on, writes
  what was found, and adds it to the tenant's account; a row that has moved on is left alone.
"""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from email import message_from_bytes
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.worker import task
from herdbook.finding import find

if TYPE_CHECKING:
    from herdbook.connecting import AsyncCluster

BUCKET: Final = "mail"
NEW: Final = "new"
SENT: Final = "sent"
TABLES: Final = (
    "CREATE TABLE sent (name VARCHAR PRIMARY KEY, tenant VARCHAR NOT NULL, size BIGINT NOT NULL, "
    "lines BIGINT NOT NULL, words BIGINT NOT NULL, parts INT NOT NULL, sha256 VARCHAR NOT NULL)",
    "CREATE TABLE account (tenant VARCHAR PRIMARY KEY, messages BIGINT NOT NULL, "
    "size BIGINT NOT NULL)",
)


class Found(NamedTuple):
    """What is in a message."""

    size: int
    lines: int
    words: int
    parts: int
    sha256: str


def look_into(content: bytes) -> Found:
    """Parse, count and hash a message.

    >>> look_into(b"Subject: Elsa\\n\\nmoo moo\\n")[:4]
    (23, 3, 4, 1)
    """
    parts = sum(1 for _ in message_from_bytes(content).walk())
    digest = hashlib.sha256(content).hexdigest()
    return Found(len(content), content.count(b"\n"), len(content.split()), parts, digest)


class _Opened:
    """The cluster, open as long as this process is."""

    def __init__(self) -> None:
        self._held = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._cluster: AsyncCluster | None = None

    async def cluster(self) -> "AsyncCluster":
        """The one that the environment names."""
        from herdbook.connecting import connect_async

        async with self._opening:
            if self._cluster is None:
                self._cluster = await self._held.enter_async_context(connect_async(find(None)))
            return self._cluster


_opened: Final = _Opened()


@task(attempts_max=50)
async def send(tenant: str, names: list[str]) -> int:
    """Send the messages of these names; returns how many this attempt has sent."""
    cluster = await _opened.cluster()
    bucket = await cluster.blobs.bucket(BUCKET)
    found = {name: look_into(await bucket.get(name)) for name in names}
    marks = ", ".join("?" * len(names))
    async with await cluster.sql() as connection:
        asked = await connection.execute(
            f"SELECT name FROM message WHERE name IN ({marks}) AND state = ? FOR UPDATE",
            [*names, NEW],
        )
        todo = sorted(name for [name] in await asked.fetchall())
        if todo:
            await connection.executemany(
                "UPDATE message SET state = ? WHERE name = ?", [(SENT, name) for name in todo]
            )
            await connection.executemany(
                "INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(name, tenant, *found[name]) for name in todo],
            )
            await connection.execute(
                "UPDATE account SET messages = messages + ?, size = size + ? WHERE tenant = ?",
                [len(todo), sum(found[name].size for name in todo), tenant],
            )
        await connection.commit()
    return len(todo)
