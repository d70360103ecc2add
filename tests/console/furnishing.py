"""What the store of these tests holds, with names that would do harm if a page believed them."""

import asyncio
import json
from typing import Final

from broker.rollouts.record import State
from broker.rollouts.rollouts import AsyncRollouts
from broker.settings import Pause, Quota
from broker.spec import Schedule, Spec
from broker.task import Mode
from tests.broker.service.yard import FakeWorker, submitted
from tests.console.serving import Served
from tests.herdbook.bookie_processes import reached

MARKED: Final = "<img src=x onerror=\"document.title='it ran'\">"
"""A name, a text, a type: whatever somebody may choose."""
SCRIPT: Final = b"<script>document.title = 'it ran'</script>"
PAGE: Final = b"<!doctype html><title>harmless</title>" + SCRIPT
DRAWING: Final = b'<svg xmlns="http://www.w3.org/2000/svg">' + SCRIPT + b"</svg>"
COWS: Final = 40
PASTURE: Final = {"pasture": "the upper one", "note": MARKED}
_DEADLINE_S: Final = 20
ACTION: Final = {
    "action": "barn:repaint",
    "version": 2,
    "limit": 1,
    "cluster_name": "barns",
    "owner": "ann",
    "nodes": ["barn-1", "barn-2", "barn-3"],
}


async def furnish(store: Served) -> None:
    """Tables, objects, tasks in many states, a worker and roll-outs."""
    for some in (_tables, _objects, _tasks, _rollouts):
        await store.look()
        await some(store)
    await store.look()


async def _tables(store: Served) -> None:
    async with await store.book.sql(autocommit=True) as connection:
        await connection.execute(
            "CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT NOT NULL, weight_kg DOUBLE)"
        )
        rows = [(each, f"Elsa the {each}th", 400 + each / 4) for each in range(2, COWS)]
        await connection.executemany("INSERT INTO cows VALUES (?, ?, ?)", rows)
        await connection.execute("INSERT INTO cows VALUES (0, ?, NULL)", (MARKED,))
        await connection.execute("INSERT INTO cows VALUES (1, 'Bella', 512.5)")
        await connection.execute(
            "CREATE TABLE milkings (cow BIGINT, day DATE, litres DOUBLE, PRIMARY KEY (cow, day))"
        )


async def _objects(store: Served) -> None:
    blobs = store.book.blobs
    letters = await blobs.create_bucket("letters")
    await blobs.set_quota("letters", quota_bytes=2**20)
    await blobs.create_bucket("photos")
    for name in ("2025/may/elsa.txt", "2025/june/bella.txt", "2026/readme.txt"):
        await letters.put(name, name.encode() * 100, content_type="text/plain", metadata=PASTURE)
    for name, body, kind in (
        ("hostile/page.html", PAGE, "text/html"),
        ("hostile/drawing.svg", DRAWING, "image/svg+xml"),
        (f"hostile/{MARKED}", SCRIPT, "text/html"),
    ):
        await letters.put(name, body, content_type=kind)


async def _tasks(store: Served) -> None:
    broker = store.broker
    done = [Spec("resize", "acme"), Spec("mail", "borden"), Spec(MARKED, "acme", MARKED.encode())]
    await submitted(broker, *done)
    worker = await FakeWorker.connected(
        broker, "shed-1", places=4, types=("resize", "mail", MARKED)
    )
    runs = {each.type: each for each in await worker.until_runs(3)}
    told = json.dumps({"written": ["small.jpg"], "bytes": 5120}).encode()
    await worker.finish(runs["resize"], runs["mail"], result=told)
    await worker.fail(runs[MARKED], f"{MARKED} is no type")
    await submitted(broker, Spec("resize", "acme", b'{"path": "elsa.jpg", "width": 640}'))
    await worker.until_runs(1)
    quick = [Spec("mail", tenant) for tenant in ("acme", "acme", "borden", "casey")]
    await submitted(broker, *quick)
    for _ in quick:
        await store.look()
        await worker.finish(*await worker.until_runs(1))
    await FakeWorker.connected(broker, MARKED, places=2, types=("none",))
    waiting = [Spec("letter", "acme", priority=each) for each in range(3)]
    waiting += [Spec("letter", "borden", mode=Mode.AT_MOST_ONCE), Spec("letter", MARKED)]
    await submitted(broker, *waiting)
    await broker.set("quota", "acme", Quota(tasks=1_000, payload_bytes=2**20), "ann")
    await broker.set("quota", "", Quota(tasks=9_000), "ann")
    nightly = Schedule("clean", Spec("sweep", "acme"), "0 4 * * *")
    await broker.set_schedule(nightly, "ann")
    await broker.set_schedule(Schedule(MARKED, Spec(MARKED, "acme"), "", "UTC", 3_600_000), "ann")
    await broker.set("pause", "tenant:borden", Pause("the post office is shut"), "ann")


async def _rollouts(store: Served) -> None:
    rollouts = AsyncRollouts(store.broker)
    await rollouts.start({**ACTION, "task_id": "paint-2026"}, "ann")
    await rollouts.start({**ACTION, "task_id": "roof-2026", "cluster_name": "roofs"}, "ann")

    async def has_begun() -> bool:
        return (await rollouts.get("roof-2026")).state is not State.STARTING

    async with asyncio.timeout(_DEADLINE_S):
        await reached(has_begun)
    await rollouts.pause("roof-2026", "it rains", "ann")
