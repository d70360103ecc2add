"""A store with something of everything in it, and what it holds, for comparing two of them."""

import random
from pathlib import Path
from typing import Any

from broker.tasks import AsyncTasks
from engine.access.principal import Grant
from engine.ledger.client import LedgerClient
from herdbook.access.rows import UserRows
from herdbook.book import AsyncBook, open_async

BUCKETS = ("photos", "letters")
PASSWORD = b"only the herdsman knows"
QUERIES = {
    "farm": "SELECT id, name, milk FROM cow ORDER BY id",
    "default": "SELECT id, note FROM diary ORDER BY id",
}
Held = dict[str, Any]


async def fill(book: AsyncBook) -> None:
    """Put something of everything into a new store."""
    rng = random.Random(7)
    session = await book.herd.session("default")
    await session.execute("CREATE TABLE diary (id BIGINT PRIMARY KEY, note TEXT)")
    await session.execute("INSERT INTO diary SELECT n, 'day ' || n FROM range(500) AS r(n)")
    await session.close()
    await book.herd.make("farm")
    session = await book.herd.session("farm")
    await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT UNIQUE, milk INT)")
    await session.execute("INSERT INTO cow SELECT n, 'cow ' || n, n % 40 FROM range(2000) AS r(n)")
    await session.execute("CREATE INDEX by_milk ON cow (milk)")
    # Rows of a checkpoint, and of the log behind it.
    await session.execute("CHECKPOINT")
    await session.execute("UPDATE cow SET milk = 41 WHERE id < 10")
    await session.close()
    for name in BUCKETS:
        bucket = await book.blobs.create_bucket(name)
        for number in range(20):
            await bucket.put(f"2024/{number}.jpg", rng.randbytes(rng.randrange(1, 50_000)))
        await bucket.put("large", rng.randbytes(3_000_000))
    writer = await book.ledgers.create_ledger(metadata={"owner": b"somebody"}, password=PASSWORD)
    await writer.append_many([b"moo %d" % number for number in range(700)])
    await writer.close()
    await (await book.ledgers.create_ledger()).close()
    tasks = await book.tasks()
    for number in range(30):
        await tasks.submit("milk", {"cow": number}, tenant=f"farm-{number % 3}")
    await tasks.submit("weigh", rng.randbytes(2_000_000))
    await tasks.schedule("nightly", "milk", {}, cron="0 3 * * *")
    await tasks.set_tenant("farm-1", maximum=2)


async def given(book: AsyncBook) -> Held:
    """Ids of things without a name."""
    unnamed = await (await book.blobs.bucket("photos")).put_unnamed(b"no name" * 1_000)
    writer = await book.ledgers.create_ledger(metadata={"owner": b"a writer"})
    await writer.append(b"it stays open")
    return {
        "object": str(await book.blobs.put(b"no bucket" * 1_000)),
        "unnamed": str(unnamed),
        "open": writer.ledger_id,
    }


async def add_users(book: AsyncBook) -> None:
    """One who may do all, and one who may read."""
    users = UserRows(book.herd, book.ledgers.clock)
    await users.add("ann", "correct horse battery", admin=True)
    await users.add("bob", "staple a horse to it")
    await users.grant("bob", Grant("tablespace", "farm", "read"))


async def users_in(book: AsyncBook) -> list[Any]:
    """The users, what they were granted, and what their passwords are checked by."""
    users = UserRows(book.herd, book.ledgers.clock)
    return [(each, await users.find(each.name)) for each in await users.all()]


async def rows_in(book: AsyncBook) -> Held:
    """What tablespaces hold."""
    found: Held = {}
    for name, query in QUERIES.items():
        session = await book.herd.session(name)
        found[name] = (await session.execute(query)).rows
        await session.close()
    return found


async def objects_in(book: AsyncBook) -> Held:
    """The objects of each bucket, whole: name, etag, metadata, bytes."""
    found: Held = {}
    for name in BUCKETS:
        bucket = await book.blobs.bucket(name)
        infos = [info async for info in bucket.scan()]
        found[name] = [(info, await bucket.get(info.name)) for info in infos]
    return found


async def tasks_of(tasks: AsyncTasks) -> list[Any]:
    """All tasks: id, tenant, type, status, payload."""
    found = (await tasks.list(limit=1_000)).tasks
    return [
        (one.id, one.tenant, one.type, one.status, await tasks.payload(one.id)) for one in found
    ]


async def ledgers_in(client: LedgerClient) -> Held:
    """The entries of the closed ledgers of somebody, by id, and what is known of them."""
    found: Held = {}
    for ledger_id in await client.list_ledgers():
        metadata = await client.ledger_metadata(ledger_id)
        if metadata.closed and metadata.custom.get("owner") in (None, b"somebody"):
            password = PASSWORD if metadata.custom else b""
            reader = await client.open_ledger(ledger_id, password=password)
            bodies = [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]
            found[str(ledger_id)] = (
                bodies,
                metadata.custom,
                metadata.key_hash,
                metadata.created_ms,
            )
            await reader.close()
    return found


async def held_in(path: Path) -> Held:
    """All that a folder holds."""
    async with open_async(path) as book:
        tasks = await book.tasks()
        return {
            "rows": await rows_in(book),
            "objects": await objects_in(book),
            "tasks": await tasks_of(tasks),
            "schedules": await tasks.schedules(),
            "ledgers": await ledgers_in(book.ledgers),
            "users": await users_in(book),
        }
