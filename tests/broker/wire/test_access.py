"""Who may do what with tasks over gRPC: every method, and every call that can be asked."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
import msgspec
import pytest
from grpc import aio

from broker.access import Asking
from broker.commands import Parent, Refusal, Schedule, Spec
from broker.connection import Hello, Refused, WorkerLimits
from broker.errors import (
    AccessDenied,
    BrokerError,
    InvalidTask,
    Overloaded,
    SlotBusy,
    TooLarge,
    UnknownTask,
    UnknownTransaction,
    WaitTimedOut,
)
from broker.reading import TaskFilter
from broker.service import Broker
from broker.task import HOUR_MS, Task
from broker.task import Status as TaskStatus
from broker.tenant_calls import OF_ANYBODY, TenantCalls, as_seen_by
from broker.wire import grpc_service
from broker.wire.asking import METHODS
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_port import GrpcWorkerPort
from broker.wire.grpc_server import GrpcBrokerServer
from broker.wire.remote import RemoteCalls
from engine.access.tokens import SESSION, Claims, sign
from engine.ports.clock import SystemClock
from engine.transport.grpc_login import Credentials
from engine.transport.security import Security
from tests.broker.service.yard import FakeWorker, opened
from tests.engine.access.known_users import KEY, SECRET, KeptAudit, KnownUsers, door_of, user

NODE: Final = Security(secret=SECRET)
RPCS: Final = [each.name for each in wire.DESCRIPTOR.services_by_name["Broker"].methods]


def logged_in(name: str) -> Security:
    return Security(user=name, password=f"{name}'s word")


class House:
    """A broker behind gRPC, and users of it."""

    def __init__(self, broker: Broker, users: KnownUsers, audit: KeptAudit) -> None:
        self.broker = broker
        self.users = users
        self.audit = audit
        self.address = ""

    @asynccontextmanager
    async def calls(self, security: Security) -> AsyncIterator[RemoteCalls]:
        """What somebody asks of it."""
        made = RemoteCalls(
            [self.address], SystemClock(), random.Random(1), security=security, leaderless_ms=500
        )
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    users = KnownUsers(
        user("root", admin=True),
        user("ann", ("tenant", "elsa", "write")),
        user("ben", ("tenant", "rosa", "write")),
        user("cat", ("tenant", "elsa", "read")),
        user("dan", ("tablespace", "*", "admin")),
        user("wim", ("tenant", "*", "write")),
    )
    audit = KeptAudit()
    async with opened() as broker:
        made, door = House(broker, users, audit), door_of(users, audit)
        server = await GrpcBrokerServer.start(
            broker, listen="127.0.0.1:0", security=NODE, door=door
        )
        made.address = f"127.0.0.1:{server.port}"
        try:
            yield made
        finally:
            await server.close(0)


async def submitted(calls: Any, tenant: str = "elsa", **more: Any) -> int:
    [answer] = await calls.submit([Spec(type="milk", tenant=tenant, **more)])
    assert isinstance(answer, int), answer
    return answer


# Coming in


async def test_every_method_is_refused_to_strangers() -> None:
    async with house() as made, aio.insecure_channel(made.address) as channel:
        expired = sign(Claims(SESSION, "ann", 1), KEY)
        for name in RPCS:
            for shown in ("", "Bearer token-zoe", f"Bearer {expired}", "Basic eDp5"):
                call = channel.stream_stream(f"/herdbook.broker.v1.Broker/{name}", None, None)
                metadata = [("authorization", shown)] if shown else []
                # Nothing is sent: to send to what has been refused is an error of its own.
                with pytest.raises(aio.AioRpcError) as refusal:
                    await call(None, metadata=metadata, timeout=5).read()
                assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, (name, shown)


@pytest.mark.parametrize(
    "security",
    [
        Security(),
        Security(secret=b"the cows come home at ten"),
        Security(user="ann", password="ben's word"),
        Security(user="zoe", password="zoe's word"),
        Security(token="token-zoe"),
    ],
    ids=["nothing", "secret", "password", "user", "token"],
)
async def test_nobody_else_asks_anything(security: Security) -> None:
    async with house() as made, made.calls(security) as calls:
        with pytest.raises(AccessDenied):
            await calls.now_ms()


async def test_users_come_by_password_and_by_token_and_log_in_once() -> None:
    async with house() as made:
        for security in (logged_in("ann"), Security(token="token-ann"), NODE):
            async with made.calls(security) as calls:
                assert (await calls.task(await submitted(calls))).tenant == "elsa"
        assert made.users.asked.count("scram ann") == 1


# Tenants


async def test_a_tenants_tasks_are_its_users_alone() -> None:
    async with house() as made, made.calls(logged_in("ann")) as ann:
        task_id = await submitted(ann, slot="stall")
        for other in ("ben", "dan"):
            async with made.calls(logged_in(other)) as calls:
                with pytest.raises(UnknownTask):
                    await calls.task(task_id)
                with pytest.raises(UnknownTask):
                    await calls.wait(task_id, 1)
                with pytest.raises(UnknownTask):
                    await calls.payload(await ann.task(task_id))
                for act in (calls.cancel, calls.retry, calls.delete):
                    with pytest.raises(UnknownTask):
                        await act([task_id])
                with pytest.raises(AccessDenied):
                    await calls.submit([Spec(type="milk", tenant="elsa")])
                with pytest.raises(AccessDenied):
                    await calls.tasks(TaskFilter(tenant="elsa"))
        async with made.calls(logged_in("ben")) as ben:
            assert (await ben.tasks(TaskFilter())).tasks == []
            assert await ben.queues() == []
            [busy] = await ben.submit([Spec(type="milk", tenant="rosa", slot="stall")])
            assert isinstance(busy, Refusal) and (busy.code, busy.task_id) == (SlotBusy.code, 0)
        assert [task.id for task in (await ann.tasks(TaskFilter())).tasks] == [task_id]
        refused = {(event.who, event.what) for event in made.audit.events if not event.allowed}
        assert {("ben", "submit"), ("dan", "tasks")} <= refused


async def test_one_users_waits_keep_nobody_else_from_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_service, "_WAITS_MAX", 8)
    async with house() as made, made.calls(logged_in("ann")) as ann:
        task_id = await submitted(ann)
        waits = [asyncio.create_task(ann.wait(task_id, 20_000)) for _ in range(2)]
        with pytest.raises(Overloaded):
            # Two are under way as soon as there is no room for a third one.
            while True:
                with suppress(WaitTimedOut):
                    await ann.wait(task_id, 1)
        async with made.calls(logged_in("ben")) as ben:
            with pytest.raises(WaitTimedOut):
                await ben.wait(await submitted(ben, "rosa"), 1)
        await ann.cancel([task_id])
        assert [task.id for task in await asyncio.gather(*waits)] == [task_id] * 2


async def test_a_user_sees_only_types_of_tasks_of_the_users_tenants() -> None:
    async with house() as made, made.calls(NODE) as node, made.calls(logged_in("ann")) as ann:
        # Submitted by a part of the cluster: whoever asks for the types did not see these tasks.
        worker = await FakeWorker.connected(made.broker, "w1", limits=WorkerLimits(1))
        for tenant, kind in (("elsa", "milk"), ("elsa", "feed"), ("rosa", "ledger-of-rosa")):
            await node.submit([Spec(type=kind, tenant=tenant)])
        await worker.until_runs(1)
        assert {each.name for each in await node.resources()} >= {"milk", "feed", "ledger-of-rosa"}
        assert {each.name for each in await ann.resources()} == {"milk", "feed"}
        async with made.calls(logged_in("dan")) as dan:
            assert await dan.resources() == []


async def test_who_may_only_look_changes_nothing() -> None:
    async with house() as made, made.calls(NODE) as node, made.calls(logged_in("cat")) as cat:
        task_id = await submitted(node)
        assert (await cat.task(task_id)).tenant == "elsa"
        assert len((await cat.tasks(TaskFilter())).tasks) == 1
        for act in (cat.cancel, cat.retry, cat.delete):
            with pytest.raises(AccessDenied):
                await act([task_id])
        with pytest.raises(AccessDenied):
            await cat.begin()
        with pytest.raises(AccessDenied):
            await submitted(cat)


async def test_what_a_user_says_of_themselves_is_not_believed() -> None:
    async with house() as made, made.calls(logged_in("ann")) as ann:
        task = await ann.task(await submitted(ann, submitter="root"))
        assert task.submitter == "ann"
        number = await ann.begin("ben")
        async with made.calls(logged_in("ben")) as ben:
            for act in (ben.commit, ben.rollback):
                with pytest.raises(UnknownTransaction):
                    await act(number)
            assert await ben.transactions() == []
        assert [each.owner for each in await ann.transactions()] == ["ann"]
        async with made.calls(NODE) as node:
            secret = msgspec.structs.replace(task, id=await submitted(node, "rosa", payload=b"x"))
        with pytest.raises(UnknownTask):
            await ann.payload(secret)


async def test_where_tasks_run_and_how_long_they_are_kept_administrators_say() -> None:
    async with house() as made, made.calls(logged_in("ann")) as ann:
        wrong: list[dict[str, Any]] = [
            {"retention_ms": 31 * 24 * HOUR_MS},
            {"dead_retention_ms": 31 * 24 * HOUR_MS},
            {"fixed": True, "group": 7},
        ]
        for more in wrong:
            with pytest.raises(AccessDenied):
                await submitted(ann, **more)
        with pytest.raises(AccessDenied):
            await ann.begin("", 25 * HOUR_MS)
        async with made.calls(logged_in("root")) as root:
            assert await root.begin("", 25 * HOUR_MS)


async def test_nobody_reads_another_tenants_payload_by_the_name_of_its_object() -> None:
    """A name may be known: from a time when its tenant's tasks could be seen."""
    async with house() as made:
        for name in ("ann", "wim"):
            async with made.calls(logged_in(name)) as calls:
                with pytest.raises(AccessDenied):
                    await submitted(calls, payload_object="rosas")
        async with made.calls(NODE) as node:
            assert (await node.task(await submitted(node, payload_object="rosas"))).payload_object


class Counted:
    """A broker that finds every task, and counts how often it is asked for one."""

    looks = 0

    async def task(self, task_id: int) -> Task:
        self.looks += 1
        return Task(task_id, "elsa", "milk", TaskStatus.WAITING)

    async def submit(self, specs: Any, **_: Any) -> list[int]:
        return [7 for _ in specs]

    async def cancel(self, task_ids: Any, _by: str = "") -> list[int]:
        return list(task_ids)

    retry = delete = cancel


async def test_a_call_that_asks_for_too_much_is_refused_before_anything_is_looked_at() -> None:
    broker: Any = Counted()
    calls: Any = TenantCalls(broker, Asking("ann", False, ("elsa",)))
    many = Spec("milk", "elsa", parents=(Parent(7),) * 1_000)
    for asked in (
        calls.submit([many] * 2),
        calls.submit([Spec("milk", "elsa")] * 10_001),
        calls.cancel([7] * 1_001),
        calls.retry([7] * 1_001),
        calls.delete([7] * 1_001),
    ):
        with pytest.raises(TooLarge):
            await asked
    assert broker.looks == 0


async def test_numbers_that_are_no_ids_and_no_times_are_told_so_by_the_broker() -> None:
    async with house() as made, aio.insecure_channel(made.address) as channel:

        async def code(known: str, name: str, asked: Any, reply: Any) -> str:
            call: Any = channel.unary_unary(f"/herdbook.broker.v1.Broker/{name}", None, None)
            metadata = [("authorization", f"Bearer token-{known}")]
            data = await call(asked.SerializeToString(), metadata=metadata, timeout=20)
            return str(reply.FromString(data).failure.code)

        for name in ("task", "cancel", "delete"):
            number: Any = -1 if name == "task" else [-1]
            asked = wire.AskRequest(name=name, arguments=msgspec.msgpack.encode([number]))
            assert await code("ann", "Ask", asked, wire.AskReply) == UnknownTask.code
        for known, expected in (("ann", AccessDenied.code), ("root", InvalidTask.code)):
            begun = wire.BeginTransactionRequest(ttl_ms=2**64 - 1)
            assert await code(known, "BeginTransaction", begun, wire.TransactionReply) == expected


async def test_a_grant_that_is_taken_back_counts_in_a_stream_that_is_open() -> None:
    async with house() as made, made.calls(logged_in("ann")) as ann:
        await submitted(ann)
        made.users.users["ann"] = user("ann", ("tenant", "rosa", "write"))
        with pytest.raises(AccessDenied):
            await submitted(ann)
        del made.users.users["ann"]
        with pytest.raises(AccessDenied):
            await ann.now_ms()


OWN: Final = frozenset(
    (
        *("submit", "begin", "commit", "rollback", "transactions", "task", "payload", "result"),
        *("wait", "tasks", "cancel", "retry", "delete", "queues"),
    )
)


class Untouched:
    """A broker that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")


async def test_every_other_call_is_for_administrators() -> None:
    calls = TenantCalls(Untouched(), Asking("ann", False, ("elsa",)))
    sorted_in = {name for name in vars(TenantCalls) if name in METHODS}
    assert sorted_in >= OWN
    others = set(METHODS) - sorted_in - OF_ANYBODY
    assert {"set", "set_schedule", "put_code", "put_rollout", "slots"} < others
    for name in sorted(others):
        with pytest.raises(AccessDenied):
            await getattr(calls, name)()


def test_an_administrator_asks_the_broker_itself() -> None:
    broker: Any = object()
    assert as_seen_by(broker, Asking()) is broker


async def test_settings_and_schedules_over_the_wire_are_for_administrators() -> None:
    async with house() as made, made.calls(logged_in("ann")) as ann:
        for call in (
            ann.set("pause", "elsa", None),
            ann.settings_of(),
            ann.set_schedule(Schedule("hourly", Spec(type="milk"), "0 * * * *")),
            ann.slots(),
            ann.code_pools(),
            ann.rollouts(),
        ):
            with pytest.raises(AccessDenied):
                await call
        async with made.calls(logged_in("root")) as root:
            assert await root.slots() == []


# Workers


HELLO: Final = Hello("w", "p", "here", (), WorkerLimits(1))


async def first_word(made: House, security: Security) -> Any:
    port = GrpcWorkerPort([made.address], security)
    try:
        link = await port.connect(HELLO)
        return (await link.receive())[0]
    finally:
        await port.close()


async def test_a_worker_needs_the_right_to_all_tenants() -> None:
    async with house() as made:
        for name in ("ann", "cat", "dan"):
            said = await first_word(made, logged_in(name))
            assert isinstance(said, Refused) and said.final and "tenant *" in said.reason
        for security in (logged_in("wim"), logged_in("root"), NODE):
            assert not isinstance(await first_word(made, security), Refused)


async def test_streams_of_workers_have_no_share_and_those_of_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_security._STREAMS_MAX", 4)
    async with house() as made, aio.insecure_channel(made.address) as channel:
        work: Any = channel.stream_stream("/herdbook.broker.v1.Broker/Work", None, None)
        for name, too_many in (("ann", 2), ("wim", 0)):
            calls = [work(metadata=[("authorization", f"Bearer token-{name}")]) for _ in range(3)]
            codes = [asyncio.ensure_future(call.code()) for call in calls]
            # Of the others, each waits for its first message.
            async with asyncio.timeout(20):
                while sum(code.done() for code in codes) < too_many:
                    await asyncio.wait(
                        [code for code in codes if not code.done()],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
            for call, code in zip(calls, codes, strict=True):
                if not code.done():
                    with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                        await call.write(b"\xff")
            told = [await code for code in codes]
            assert told.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == too_many
            assert told.count(grpc.StatusCode.INVALID_ARGUMENT) == 3 - too_many


async def test_code_is_for_who_may_work() -> None:
    async with house() as made, aio.insecure_channel(made.address) as channel:
        fetch = channel.unary_stream("/herdbook.broker.v1.Broker/FetchCode", None, None)
        data = wire.FetchCodeRequest(name="tools").SerializeToString()
        for name, code in (("ann", "access_denied"), ("wim", "unknown_code_pool")):
            metadata = await Credentials(logged_in(name), SystemClock()).metadata(channel)
            [reply] = [each async for each in fetch(data, metadata=metadata)]
            assert wire.FetchCodeReply.FromString(reply).failure.code == code


async def test_a_workers_link_ends_when_its_user_may_work_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.wire.grpc_service.CHECK_S", 0.01)
    async with house() as made:
        port = GrpcWorkerPort([made.address], logged_in("wim"))
        link = await port.connect(HELLO)
        await link.receive()
        made.users.users["wim"] = user("wim")
        with pytest.raises(BrokerError):
            async with asyncio.timeout(5):
                while True:
                    await link.receive()
        await port.close()


# Passing on


async def test_a_users_call_is_judged_again_by_who_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as made:
        asked: list[Any] = []

        async def ask(self: Any, address: str, method: str, data: bytes, *, reads: bool) -> None:
            async with aio.insecure_channel(made.address) as channel:
                asked.append(await self._metadata(channel))

        monkeypatch.setattr("broker.wire.forwarding.Forwarder.ask", ask)

        async def leads_not(*_: Any, **__: Any) -> None:
            from broker.errors import NotLeader

            raise NotLeader("another one leads", leader="elsewhere:1")

        monkeypatch.setattr(made.broker, "submit", leads_not)
        for security in (logged_in("ann"), NODE):
            async with made.calls(security) as calls:
                with pytest.raises(BrokerError):
                    await submitted(calls)
        [(name, shown)], [(node_name, _)] = asked[0], asked[-1]
        assert name == "authorization" and node_name == "herdbook-secret-bin"
        assert (await made.users.token(shown.removeprefix("Bearer "))).name == "ann"
