"""Tasks of a folder for openers that do not run them: asked over the owner's socket."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from broker.calls import Calls
from broker.commands import Answer, Refusal, Spec
from broker.connection import Completion, Done, Ended, Hello, Leaving, Welcome, WorkerLimits
from broker.errors import (
    BrokerUnavailable,
    InvalidSetting,
    InvalidTask,
    OutcomeUnknown,
    Overloaded,
    SessionLost,
    TooLarge,
    UnknownCodePool,
    UnknownTask,
    WaitTimedOut,
)
from broker.reading import TaskFilter
from broker.service import Broker
from broker.settings import Limit
from broker.task import Status
from broker.wire import framed_client, framed_server
from broker.wire.folder import OWNER, FolderCalls, FolderRoute
from broker.wire.framed_client import dial_folder
from broker.wire.framing import CALL
from engine.folder.lock import FolderLock, Ownership
from engine.ports.clock import SystemClock
from tests.broker.service.yard import opened

HELLO = Hello("w", "p", "barn", ("milk",), WorkerLimits(4))


class Opener:
    """One opener of a folder's tasks."""

    def __init__(self, folder: Path) -> None:
        self.broker: Any = None
        self._opening: Any = None
        clock = SystemClock()
        self.route = FolderRoute(folder, self._run, clock, random.SystemRandom())
        self.calls: Calls = FolderCalls(self.route, clock)

    async def _run(self) -> Broker:
        self._opening = opened()
        self.broker = await self._opening.__aenter__()
        return cast(Broker, self.broker)

    async def close(self) -> None:
        await self.route.close()
        if self._opening is not None:
            await self._opening.__aexit__(None, None, None)
            self._opening = None


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Opener, Opener]]:
    """One that runs the tasks, and another one."""
    owner, guest = Opener(folder), Opener(folder)
    try:
        await owner.calls.now_ms()
        await guest.calls.now_ms()
        assert owner.broker is not None and guest.broker is None
        yield owner, guest
    finally:
        await guest.close()
        await owner.close()


async def test_a_guest_asks_all_that_an_owner_can(tmp_path: Path) -> None:
    async with two(tmp_path) as (owner, guest):
        calls = guest.calls
        first, refused = await calls.submit(
            [Spec("milk", "elsa", bytes(500_000), slot="a"), Spec("milk", slot="a")]
        )
        assert isinstance(first, int) and isinstance(refused, Refusal)
        assert refused.code == "slot_busy" and refused.task_id == first
        task = await calls.task(first)
        assert task == owner.broker.get(first) and await calls.payload(task) == bytes(500_000)
        assert (await calls.tasks(TaskFilter(type="milk"))).tasks == [task]
        assert await calls.set("resource", "db", Limit(3))
        assert await calls.settings_of() == [("resource", "db", Limit(3))]
        with pytest.raises(InvalidSetting):
            await calls.set("resource", "db", Limit(-1))
        with pytest.raises(UnknownTask, match=r"^there is no task 99 \(") as raised:
            await calls.task(99)
        assert raised.value.task_id == 99
        with pytest.raises(WaitTimedOut):
            await calls.wait(first, 5)
        waiting = asyncio.create_task(calls.wait(first))
        assert await calls.cancel([first]) == [Answer.DONE]
        assert (await waiting).status is Status.CANCELLED
        await calls.put_code("pool", bytes(9_000_000))
        assert [each.name for each in await calls.code_pools()] == ["pool"]


async def test_what_does_not_fit_is_refused_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (_, guest):
        calls = guest.calls
        ids = await calls.submit([Spec("milk", payload=bytes(200)) for _ in range(50)])
        monkeypatch.setattr(framed_client, "MESSAGE_BYTES_MAX", 5_000)
        monkeypatch.setattr(framed_server, "MESSAGE_BYTES_MAX", 5_000)
        with pytest.raises(TooLarge, match="a call of"):
            await calls.submit([Spec("milk", payload=bytes(900)) for _ in range(9)], atomic=True)
        with pytest.raises(TooLarge, match="ask for less"):
            await calls.tasks(TaskFilter())
        assert len((await calls.tasks(TaskFilter(), limit=5)).tasks) == 5
        monkeypatch.setattr(framed_server, "_WAITS_MAX", 3)
        monkeypatch.setattr(framed_server, "_CALLS_MAX", 2)
        waits = [asyncio.create_task(calls.wait(cast(int, each))) for each in ids[:3]]
        await asyncio.gather(*[calls.task(cast(int, each)) for each in ids])
        with pytest.raises(Overloaded):
            await calls.wait(cast(int, ids[4]))
        await calls.cancel([cast(int, each) for each in ids])
        assert {(await each).status for each in waits} == {Status.CANCELLED}


async def test_a_worker_works_over_the_socket(tmp_path: Path) -> None:
    async with two(tmp_path) as (owner, guest):
        link = await guest.calls.connect(HELLO)
        [welcome] = await link.receive()
        assert isinstance(welcome, Welcome)
        many = [Spec("milk", payload=bytes(900_000)) for _ in range(4)]
        ids = await owner.calls.submit(many)
        runs: list[Any] = []
        while len(runs) < len(many):
            for message in await link.receive():
                runs += getattr(message, "runs", [])
        assert [run.id for run in runs] == ids and len(runs[0].payload) == 900_000
        ended = [Completion(run.id, run.attempt, Ended.FINISHED, b"7") for run in runs]
        await link.send([Done(1, welcome.session, ended[:2])])
        await link.send([Done(2, welcome.session, ended[2:])])
        for task_id in ids:
            assert isinstance(task_id, int)
            task = await guest.calls.wait(task_id)
            assert await guest.calls.result(task) == b"7"
        await link.send([Leaving(3, ended=True)])
        with pytest.raises(UnknownCodePool):
            await link.fetch_code("nowhere")
        await link.close()
        with pytest.raises(SessionLost):
            await link.send([])


async def test_when_the_owner_ends_links_end_and_who_asks_next_owns(tmp_path: Path) -> None:
    async with two(tmp_path) as (owner, guest):
        link = await guest.calls.connect(HELLO)
        await link.receive()
        third = Opener(tmp_path)
        await third.calls.now_ms()
        await owner.close()
        with pytest.raises(SessionLost):
            # The last words are that it leads no more.
            while await link.receive():
                pass
        assert await guest.calls.now_ms() > 0
        assert guest.broker is not None
        [task_id] = await third.calls.submit([Spec("milk")])
        assert third.broker is None and guest.broker.get(task_id).type == "milk"
        await third.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await third.calls.now_ms()


async def test_what_may_have_been_taken_is_never_sent_again(tmp_path: Path) -> None:
    async with two(tmp_path) as (owner, guest):
        begun = asyncio.Event()

        async def never(*_: Any, **__: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        owner.broker.submit = owner.broker.now_ms = never
        for name, seen in (("submit", OutcomeUnknown), ("now_ms", None)):
            work = guest.calls.submit([Spec("milk")]) if name == "submit" else guest.calls.now_ms()
            asking: asyncio.Task[Any] = asyncio.create_task(work)
            begun.clear()
            await begun.wait()
            channel = cast(Any, await guest.route.own_or_reach())
            begun.clear()
            channel.wire.abort()
            if seen is not None:
                with pytest.raises(seen):
                    await asking
            else:
                await begun.wait()
                asking.cancel()


async def test_only_who_knows_the_folder_is_heard(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, guest):
        lock = FolderLock.of(tmp_path / OWNER)
        owned = lock.read()
        lock.close()
        assert isinstance(owned, Ownership)
        with pytest.raises(BrokerUnavailable, match="another folder"):
            await dial_folder(owned.address, "0" * 32, SystemClock())
        channel = await dial_folder(owned.address, owned.nonce, SystemClock())
        with pytest.raises(InvalidTask):
            await channel.ask("no_such_call", b"")
        channel.wire.send(CALL, b"\xff", request=7_000)
        with pytest.raises(InvalidTask):
            await channel.ask("task", b"\x90")
        channel.close()
        reader, writer = await asyncio.open_unix_connection(owned.address.removeprefix("unix:"))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        assert (await reader.read(1_000)) != b"" or reader.at_eof()
        writer.close()
        assert await guest.calls.now_ms() > 0
