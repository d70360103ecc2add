"""The life of a mailing platform, from its first message to the report, with two accidents.

Three tenants send; each may have so many of its tasks run at a time. On the way a node is killed
with its bookie, and then the one whose broker leads.

Invariants:
- What it says at the end it has looked up, in more than one way; nothing is taken as given.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.describing import Options, Wanted
from broker.errors import BrokerError
from broker.reading import TaskFilter
from broker.task import FINAL_STATES, Status
from broker.tasks import AsyncTasks
from engine.errors import EngineError
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from engine.ports.workers import Workers
from herd.errors import Error
from herdbook.connecting import AsyncCluster, connect_async
from herdbook.finding import URL_VARIABLE
from herdbook.mailing.ending import ending_by_signals
from herdbook.mailing.gathering import TENANTS, Gathered, gather
from herdbook.mailing.own_folder import own_folder
from herdbook.mailing.processes import Processes, running
from herdbook.mailing.report import StoryReport
from herdbook.mailing.work import BUCKET, NEW, SENT, TABLES, send

T = TypeVar("T")
Step = Callable[[str, int, int], None]
"""Told of progress: what is done, how much, and of how much; 0: of nobody knows how much."""
MESSAGES_MAX: Final = 4_000
_TASKS_ABOUT: Final = 200
_NAMES_MAX: Final = 50
_LOOK_S: Final = 0.25
_COUNT_S: Final = 0.5
_TRIES: Final = 200
_SUBMITTED_AT_ONCE: Final = 500
_PAGE: Final = 500
_KILLS: Final = ((0.25, "bookie"), (0.55, "leader"))


@dataclass(frozen=True, slots=True)
class StorySettings:
    """What is sent, at most how many messages, and where the cluster keeps it (None: nowhere)."""

    source: Path
    data: Path | None = None
    messages_max: int = MESSAGES_MAX
    keep: bool = False
    """Whether the cluster stays up, once all is told, until a signal comes."""


async def tell(
    settings: StorySettings,
    step: Step,
    say: Callable[[str], None],
    told: Callable[[StoryReport], None] = lambda report: None,
) -> StoryReport:
    """Live it through. Raises `InvalidRequest`, `Unavailable`, and what its parts raise.

    The report is `told` at the end; while the cluster is up, if that is kept. SIGINT and SIGTERM
    cancel it, a second one ends this process.
    """
    report = StoryReport(str(settings.source))
    began_s = SystemClock().monotonic()
    workers = ThreadWorkers(asyncio.get_running_loop())
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder())
        ending = stack.enter_context(ending_by_signals(folder, say))
        step("gather", 0, 0)
        messages = folder / "messages"
        gathered = gather(settings.source, messages, settings.messages_max)
        report.messages, report.size_bytes = gathered.messages, gathered.size_bytes
        report.took_s["gather"] = SystemClock().monotonic() - began_s
        step("gather", 1, 1)
        # The cluster's processes start first: a thread's children would end with the thread.
        processes = stack.enter_context(running(folder, settings.data))
        ending.also.append(processes.cut_short)
        try:
            story = _Story(gathered, report, processes, workers, step, say)
            with ExitStack() as sessions:
                await story.run(sessions)
            if settings.keep:
                report.whole_s = SystemClock().monotonic() - began_s
                told(report)
                await _until_interrupted(say, processes)
                return report
        finally:
            await workers.close()
    # With the end of everything that was started.
    report.whole_s = SystemClock().monotonic() - began_s
    told(report)
    return report


async def _until_interrupted(say: Callable[[str], None], processes: Processes) -> None:
    say(f"the cluster stays up until Ctrl-C: export {URL_VARIABLE}={processes.url}")
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()


class _Story:
    def __init__(
        self,
        gathered: Gathered,
        report: StoryReport,
        processes: Processes,
        workers: Workers,
        step: Step,
        say: Callable[[str], None],
    ) -> None:
        self._gathered = gathered
        self._report = report
        self._processes = processes
        self._workers = workers
        self._step = step
        self._say = say
        self._clock = SystemClock()

    async def run(self, stack: ExitStack) -> None:
        """All of it."""
        report, processes = self._report, self._processes
        await self._timed("cluster", self._workers.run(processes.wait_until_up))
        self._say(f"the console, while it runs: {processes.login}")
        processes.start_workers()
        from herdbook.mailing import spark as with_spark

        opening = partial(stack.enter_context, with_spark.spark_of(processes.url))
        spark = await self._timed("spark", self._workers.run(opening))
        async with connect_async(processes.url) as cluster:
            await self._load(cluster, spark)
            await self._timed("tasks", self._send(cluster), counted=True)
            told = await self._by_spark("report", spark, lambda: with_spark.report(spark))
            report.lines, report.different = told
            await self._check(cluster)

    async def _load(self, cluster: AsyncCluster, spark: Any) -> None:
        from herdbook.mailing.spark import load

        await cluster.blobs.create_bucket(BUCKET)
        url = self._processes.url
        folder = self._gathered.folder
        loaded = await self._by_spark("load", spark, lambda: load(spark, url, folder))
        self._report.loaded = loaded.objects

    async def _by_spark(self, what: str, spark: Any, work: Callable[[], T]) -> T:
        """Let Spark do it; meanwhile its tasks are counted."""
        from herdbook.mailing.spark import tasks_of

        done_before, begun_before = await self._workers.run(lambda: tasks_of(spark))

        async def count() -> None:
            done, begun = await self._workers.run(lambda: tasks_of(spark))
            self._step(what, done - done_before, begun - begun_before)

        async def go_on_counting() -> None:
            while True:
                await asyncio.sleep(_COUNT_S)
                await count()

        counting = asyncio.ensure_future(go_on_counting())
        try:
            result = await self._timed(what, self._workers.run(work), counted=True)
        finally:
            counting.cancel()
        await count()
        return result

    async def _send(self, cluster: AsyncCluster) -> None:
        """Submit the tasks, and look on until all messages are sent."""
        async with await cluster.sql(autocommit=True) as connection:
            for text in TABLES:
                await connection.execute(text)
            await connection.executemany(
                "INSERT INTO account VALUES (?, 0, 0)", [(tenant,) for tenant in TENANTS]
            )
            found = await connection.execute("SELECT name FROM message ORDER BY name")
            names = [name for [name] in await found.fetchall()]
        tasks = await cluster.tasks()
        for tenant, limit in TENANTS.items():
            await tasks.set_limit(tenant, limit)
            await tasks.map_tenant(tenant, resources=(tenant,))
        wanted = list(_wanted(names))
        for first in range(0, len(wanted), _SUBMITTED_AT_ONCE):
            for each in await tasks.submit_many(wanted[first : first + _SUBMITTED_AT_ONCE]):
                if isinstance(each, Exception):
                    raise each
        self._report.tasks = len(wanted)
        await self._look_on(cluster, len(names))

    async def _look_on(self, cluster: AsyncCluster, messages: int) -> None:
        """Until so many are sent, or no task is left that could send them; two nodes are killed."""
        kills = list(_KILLS)
        done = 0
        while done < messages and not await self._given_up(cluster):
            await asyncio.sleep(_LOOK_S)
            done = await self._look(cluster, done)
            self._step("tasks", done, messages)
            while kills and done >= kills[0][0] * messages:
                await self._kill(cluster, kills.pop(0)[1])

    async def _given_up(self, cluster: AsyncCluster) -> bool:
        """Whether all tasks have ended, and not all well; no while nobody answers."""
        tasks = await cluster.tasks()
        try:
            failed = await _count(tasks, FINAL_STATES - {Status.FINISHED})
            return bool(failed) and failed + await _finished(tasks) >= self._report.tasks
        except (Error, BrokerError, EngineError):
            return False

    async def _look(self, cluster: AsyncCluster, before: int) -> int:
        """How many are sent; as many as before while nobody answers. Takes down what runs."""
        tasks = await cluster.tasks()
        try:
            for status in await tasks.calls.resources():
                if status.kind == "resource" and status.name in TENANTS:
                    most = self._report.most_running
                    most[status.name] = max(most.get(status.name, 0), status.running)
            [[done]] = await _rows(cluster, "SELECT sum(messages) FROM account")
            return int(done)
        except (Error, BrokerError, EngineError):
            return before

    async def _kill(self, cluster: AsyncCluster, whom: str) -> None:
        """Kill the node whose broker leads, or another one; all are up before."""
        leader = await self._again(partial(_leader, cluster))
        await self._again(self._all_up)
        name = self._processes.kill_node(leader, leading=whom == "leader")
        killed_s = self._clock.monotonic()
        self._report.killed[whom] = name
        what = "whose broker leads" if whom == "leader" else "with its bookie"
        self._say(f"kill -9 of {name}, {what}")
        if whom == "leader":
            await self._again(partial(_leader, cluster, leader))
            self._report.failover_s = self._clock.monotonic() - killed_s

    async def _all_up(self) -> None:
        if self._processes.nodes_up() < 3:
            raise BrokerError("a node is not up yet")

    async def _again(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it until it works: others take over meanwhile."""
        for _ in range(_TRIES):
            try:
                return await work()
            except (Error, BrokerError, EngineError):
                await asyncio.sleep(_LOOK_S)
        return await work()

    async def _check(self, cluster: AsyncCluster) -> None:
        report = self._report
        text = (
            "SELECT s.tenant, count(*), sum(s.size), sum(s.lines), sum(s.words) "
            "FROM sent s JOIN message m ON m.name = s.name AND m.state = ? "
            "GROUP BY s.tenant ORDER BY s.tenant"
        )
        report.sql = [tuple(row) for row in await self._again(lambda: _rows(cluster, text, SENT))]
        accounts = "SELECT tenant, messages, size FROM account WHERE messages > 0 ORDER BY tenant"
        report.accounts = [
            tuple(row) for row in await self._again(lambda: _rows(cluster, accounts))
        ]
        left = "SELECT count(*) FROM message WHERE state = ?"
        [[report.left]] = await self._again(lambda: _rows(cluster, left, NEW))
        tasks = await cluster.tasks()
        for _ in range(_TRIES):
            report.finished = await self._again(partial(_finished, tasks))
            if report.finished >= report.tasks or await self._given_up(cluster):
                break
            # The last ones have said what they did, and are about to say that they ended.
            await asyncio.sleep(_LOOK_S)
        await self._again(self._all_up)

    async def _timed(self, what: str, work: Awaitable[T], *, counted: bool = False) -> T:
        """Do it; `counted`: it says itself how much of it is done."""
        self._step(what, 0, 0)
        began_s = self._clock.monotonic()
        result = await work
        self._report.took_s[what] = self._clock.monotonic() - began_s
        if not counted:
            self._step(what, 1, 1)
        return result


def _wanted(names: list[str]) -> Any:
    """A task for some messages of a tenant at a time; tenants one after the other."""
    size = max(1, min(_NAMES_MAX, len(names) // _TASKS_ABOUT))
    for tenant in TENANTS:
        own = [name for name in names if name.startswith(f"{tenant}/")]
        for first in range(0, len(own), size):
            arguments = {"tenant": tenant, "names": own[first : first + size]}
            yield Wanted(send, arguments, Options(tenant=tenant))


async def _rows(cluster: AsyncCluster, text: str, *parameters: Any) -> list[Any]:
    async with await cluster.sql(autocommit=True) as connection:
        return list(await (await connection.execute(text, parameters)).fetchall())


async def _finished(tasks: AsyncTasks) -> int:
    """How many tasks have done what they are for."""
    return await _count(tasks, frozenset({Status.FINISHED}))


async def _count(tasks: AsyncTasks, statuses: frozenset[Status]) -> int:
    found, above = 0, 0
    wanted = TaskFilter(statuses, type="send")
    while True:
        page = await tasks.list(wanted, above, _PAGE)
        found += len(page.tasks)
        if page.above is None:
            return found
        above = page.above


async def _leader(cluster: AsyncCluster, before: str = "") -> str:
    """The gRPC address of the broker that leads. Raises `BrokerError` while it is that `before`."""
    from broker.wire.leader_port import LeaderWorkerPort
    from engine.transport.security import NO_SECURITY

    port = LeaderWorkerPort(cluster.ledgers.store, NO_SECURITY)
    try:
        found = await port.leader()
    finally:
        await port.close()
    if found == before:
        raise BrokerError(f"{before} is down, and still the last one known to lead")
    return found
