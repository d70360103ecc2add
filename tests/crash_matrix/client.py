"""Programs that use a store while it is killed.

    python -m tests.crash_matrix.client load STORE NOTES SEED [KIND ...]     work without end
    python -m tests.crash_matrix.client judge STORE SEED KINDS NOTES:LINE ...     look for it

STORE is a folder, `process:` and a folder whose bookies shall run in a child, a cluster's url or
the url of a node's HTTP. `load` writes a line into NOTES, and
syncs it, for each thing that was acknowledged; it prints `ready` when one of each kind was. `judge`
looks for what the notes say from a line on, and for some of what they said before, does one thing
of each kind itself, and prints a JSON object.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

import engine
import herdbook
from blobit.errors import BlobError, NoSuchObject
from broker.errors import BrokerError, UnknownTask
from broker.task import Status
from engine.errors import EngineError, NoSuchLedger
from herd.errors import Error, UniqueViolation
from herdbook.finding import is_cluster

ENTRY: Final = "entry"
ROW: Final = "row"
OBJECT: Final = "object"
TASK: Final = "task"
DONE: Final = "done"
"""A task that was submitted and whose result was seen."""
CHILD: Final = "process:"
TYPE: Final = "twice"
BUCKET: Final = "matrix"
TABLE: Final = "CREATE TABLE IF NOT EXISTS matrix (id BIGINT PRIMARY KEY, says TEXT NOT NULL)"
FAILURES: Final = (EngineError, Error, BlobError, BrokerError, httpx.HTTPError)
"""What a call may raise while its server is killed. Anything else is a defect."""
_OLD_MAX: Final = 100
_PAUSE_S: Final = 0.05
_RETRY_S: Final = 0.2
_OPEN_S: Final = 30.0
_WAIT_MS: Final = 30_000


def says(key: int) -> str:
    """The value that belongs to a key, for any kind."""
    return f"moo {key} " * (1 + key % 40)


class Store(Protocol):
    """The operations on a store. Each returns a result or raises one of `FAILURES`."""

    async def put(self, kind: str, key: int) -> str:
        """Do one operation; returns the text to record."""
        ...

    async def look(self, kind: str, noted: str) -> bool:
        """Whether the result of a recorded operation exists completely."""
        ...


class Opened:
    """A folder or a cluster, by the library."""

    def __init__(self, book: Any) -> None:
        self._book = book
        self._writer: Any = None
        self._table: Any = None
        self._bucket: Any = None
        self._ledgers: dict[int, dict[int, bytes]] = {}

    async def put(self, kind: str, key: int) -> str:
        """See `Store`."""
        return str(await getattr(self, f"_{kind}")(key))

    async def _entry(self, key: int) -> str:
        if self._writer is None:
            self._writer = await self._book.ledgers.create_ledger()
        writer = self._writer
        try:
            entry = await writer.append(says(key).encode())
        except EngineError:
            self._writer = None
            raise
        return f"{writer.ledger_id} {entry} {key}"

    async def _row(self, key: int) -> int:
        if self._table is None:
            async with await self._book.sql(autocommit=True) as connection:
                await connection.execute(TABLE)
            self._table = await self._book.table("matrix")
        try:
            await self._table.put({"id": key, "says": says(key)})
        except UniqueViolation:
            # It was done by a try whose answer was lost.
            return key
        return key

    async def _object(self, key: int) -> int:
        if self._bucket is None:
            self._bucket = await self._book.blobs.create_bucket(BUCKET, exist_ok=True)
        await self._bucket.put(str(key), says(key).encode())
        return key

    async def _task(self, key: int) -> str:
        handle = await (await self._book.tasks()).submit("nobody", says(key).encode())
        return f"{handle.id} {key}"

    async def _done(self, key: int) -> str:
        tasks = await self._book.tasks()
        handle = await tasks.submit(TYPE, {"key": key}, attempts_max=100)
        assert await handle.wait(_WAIT_MS) == 2 * key
        return f"{handle.id} {key}"

    async def look(self, kind: str, noted: str) -> bool:
        """See `Store`."""
        numbers = [int(each) for each in noted.split()]
        key = numbers[-1]
        if kind == ENTRY:
            return (await self._ledger(numbers[0])).get(numbers[1]) == says(key).encode()
        if kind == ROW:
            found = await (await self._book.table("matrix")).get(key)
            return found is not None and found["says"] == says(key)
        if kind == OBJECT:
            try:
                bucket = await self._book.blobs.bucket(BUCKET)
                return bytes(await bucket.get(str(key))) == says(key).encode()
            except NoSuchObject:
                return False
        return await self._task_there(kind, numbers[0], key)

    async def _task_there(self, kind: str, task_id: int, key: int) -> bool:
        tasks = await self._book.tasks()
        try:
            task = await tasks.get(task_id)
        except UnknownTask:
            return False
        if kind == TASK:
            return bool(task.type == "nobody" and await tasks.calls.payload(task) == said(key))
        return bool(task.status is Status.FINISHED and await tasks.wait(task_id) == 2 * key)

    async def _ledger(self, ledger_id: int) -> dict[int, bytes]:
        """Its entries, read once. Whoever judges does so when the writer is gone."""
        if ledger_id not in self._ledgers:
            try:
                reader = await self._book.ledgers.open_ledger(ledger_id)
            except NoSuchLedger:
                return {}
            last = reader.last_add_confirmed
            if last >= 0:
                found = reader.read(0, last)
                self._ledgers[ledger_id] = {each.entry_id: each.body async for each in found}
            await reader.close()
        return self._ledgers.get(ledger_id, {})


def said(key: int) -> bytes:
    """`says` as bytes."""
    return says(key).encode()


class Asked:
    """A store by a node's HTTP."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._made: set[str] = set()

    async def _ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        reply = await self._client.request(method, f"/api/v1{path}", **how)
        if reply.status_code >= 500 or reply.status_code in (408, 429):
            raise httpx.HTTPStatusError(reply.text, request=reply.request, response=reply)
        return reply

    async def _sql(self, sql: str) -> Any:
        reply = await self._ask("POST", "/tablespaces/default/query", json={"sql": sql})
        return reply.json()

    async def put(self, kind: str, key: int) -> str:
        """See `Store`."""
        if kind == ROW:
            if kind not in self._made:
                await self._sql(TABLE)
                self._made.add(kind)
            told = await self._sql(f"INSERT INTO matrix VALUES ({key}, '{says(key)}')")
            assert told.get("row_count") == 1 or "unique_violation" in str(told), told
            return str(key)
        if kind == OBJECT:
            if kind not in self._made:
                made = await self._ask("POST", "/buckets", json={"name": BUCKET})
                assert made.status_code in (200, 201, 409), made.text
                self._made.add(kind)
            path = f"/buckets/{BUCKET}/objects/{key}"
            reply = await self._ask("PUT", path, content=said(key))
            assert reply.status_code in (200, 201), reply.text
            return str(key)
        assert kind == TASK, kind
        reply = await self._ask("POST", "/tasks", json={"type": "nobody", "payload": says(key)})
        assert reply.status_code == 201, reply.text
        return f"{reply.json()['id']} {key}"

    async def look(self, kind: str, noted: str) -> bool:
        """See `Store`."""
        numbers = [int(each) for each in noted.split()]
        key = numbers[-1]
        if kind == ROW:
            told = await self._sql(f"SELECT says FROM matrix WHERE id = {key}")
            return says(key) in json.dumps(told)
        if kind == OBJECT:
            reply = await self._ask("GET", f"/buckets/{BUCKET}/objects/{key}")
            return reply.status_code == 200 and reply.content == said(key)
        reply = await self._ask("GET", f"/tasks/{numbers[0]}")
        return reply.status_code == 200 and reply.json()["type"] == "nobody"


class _Ledgers:
    """A folder of which the ledgers alone are open."""

    def __init__(self, ledgers: Any) -> None:
        self.ledgers = ledgers


@asynccontextmanager
async def opened(store: str) -> AsyncIterator[Store]:
    """A store as long as the block lasts."""
    async with AsyncExitStack() as stack:
        if store.startswith("http"):
            client = httpx.AsyncClient(base_url=store, timeout=20)
            yield Asked(await stack.enter_async_context(client))
        elif store.startswith(CHILD):
            opening = engine.open(store.removeprefix(CHILD), process=True)
            yield Opened(_Ledgers(await stack.enter_async_context(opening)))
        elif is_cluster(store):
            yield Opened(await stack.enter_async_context(herdbook.connect_async(store)))
        else:
            yield Opened(await stack.enter_async_context(herdbook.open_async(store)))


class Notes:
    """A file of what was acknowledged."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def add(self, kind: str, noted: str) -> None:
        """Write one line, durably."""
        self._file.write(f"{kind} {noted}\n".encode())
        os.fsync(self._file.fileno())


def notes_of(path: Path) -> list[tuple[str, str]]:
    """The notes in a file, without a last line that a kill truncated."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [(kind, noted) for kind, _, noted in (line.partition(" ") for line in lines)]


async def _load(store: str, path: Path, seed: str, kinds: list[str]) -> None:
    rng, notes = random.Random(seed), Notes(path)
    waited_for = set(kinds)

    async def keep(at: Store, kind: str) -> None:
        while True:
            try:
                noted = await at.put(kind, rng.getrandbits(60))
            except FAILURES as error:
                print(f"{kind}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                await asyncio.sleep(_RETRY_S)
                continue
            notes.add(kind, noted)
            if kind in waited_for:
                waited_for.discard(kind)
                if not waited_for:
                    print("ready", flush=True)
            await asyncio.sleep(_PAUSE_S)

    async with opened(store) as at:
        await asyncio.gather(*(keep(at, kind) for kind in kinds))


async def _judge(store: str, seed: str, kinds: list[str], files: list[str]) -> dict[str, Any]:
    rng = random.Random(seed)
    old: list[tuple[str, str]] = []
    wanted: list[tuple[str, str]] = []
    for path, _, line in (each.rpartition(":") for each in files):
        notes = notes_of(Path(path))
        # Tasks are forgotten some time after their end.
        old += [each for each in notes[: int(line)] if each[0] != DONE]
        wanted += notes[int(line) :]
    wanted += rng.sample(old, min(_OLD_MAX, len(old)))
    lost: list[str] = []
    async with asyncio.timeout(2 * _OPEN_S), opened(store) as at:
        for kind, noted in wanted:
            if not await _again(at.look, kind, noted):
                lost.append(f"{kind} {noted}")
        for kind in kinds:
            await _again(at.put, kind, rng.getrandbits(60))
    return {"looked_at": len(wanted), "lost": lost}


async def _again(call: Callable[[str, Any], Awaitable[Any]], kind: str, what: Any) -> Any:
    """The answer to a call. Retries while the servers are being restarted."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _OPEN_S
    while True:
        try:
            return await call(kind, what)
        except FAILURES:
            if loop.time() > until_s:
                raise
            await asyncio.sleep(_RETRY_S)


def main() -> None:
    """The program."""
    verb, store, *rest = sys.argv[1:]
    if verb == "load":
        notes, seed, *kinds = rest
        asyncio.run(_load(store, Path(notes), seed, kinds))
    else:
        seed, kinds_said, *files = rest
        kinds = [each for each in kinds_said.split(",") if each]
        told = asyncio.run(_judge(store, seed, kinds, files))
        print(json.dumps(told))


if __name__ == "__main__":
    main()
