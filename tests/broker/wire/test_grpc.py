"""The broker over gRPC: submits, looks, workers, and what does not belong there."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from broker.access import Asking
from broker.connection import (
    Completion,
    Config,
    Done,
    Ended,
    FromWorker,
    Heartbeat,
    Hello,
    Leaving,
    WorkerLimits,
)
from broker.errors import AccessDenied, BrokerUnavailable, NotLeader, SessionLost
from broker.service import Broker
from broker.task import Status, Task
from broker.wire import grpc_service
from broker.wire.channels import Channels
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_port import GrpcWorkerPort
from broker.wire.grpc_server import GrpcBrokerServer
from broker.wire.grpc_service import SERVICE, BrokerCalls
from broker.worker.pool import PoolSettings
from broker.worker.serving import serve_worker
from broker.worker.worker import Worker, WorkerSettings
from engine.ports.clock import SystemClock
from engine.ports.renewing import renew_all
from engine.transport.grpc_security import call_metadata
from engine.transport.security import NO_SECURITY, Security
from tests.broker.service.held import held_broker
from tests.broker.service.yard import opened
from tests.broker.worker.looking import until
from tests.broker.worker.scripted import ScriptedLink, ScriptedPort

REPLIES: dict[str, Any] = {
    "Submit": wire.SubmitReply,
    "Tasks": wire.TasksReply,
    "Cancel": wire.ActedReply,
    "Retry": wire.ActedReply,
    "BeginTransaction": wire.TransactionReply,
    "CommitTransaction": wire.TransactionReply,
    "RollbackTransaction": wire.TransactionReply,
}

UNKNOWN_RULE: Any = 9


class Client:
    """What another language's client does."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.channel = aio.insecure_channel(self.address)
        self.metadata: tuple[tuple[str, bytes], ...] = ()

    async def ask(self, name: str, request: Any) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        call = self.channel.unary_unary(f"/{SERVICE}/{name}", None, None)
        return REPLIES[name].FromString(await call(data, metadata=self.metadata))

    async def submit(self, **spec: Any) -> int:
        reply = await self.ask("Submit", wire.SubmitRequest(tasks=[wire.TaskSpec(**spec)]))
        assert not reply.failure.code and reply.tasks[0].task_id, reply
        return int(reply.tasks[0].task_id)

    async def task(self, task_id: int, **how: Any) -> Any:
        reply = await self.ask("Tasks", wire.TasksRequest(ids=[task_id], **how))
        return reply.tasks[0] if reply.tasks else None


@asynccontextmanager
async def served(
    broker: Broker | None = None, security: Security = NO_SECURITY
) -> AsyncIterator[Client]:
    if broker is None:
        async with opened() as made, served(made, security) as client:
            yield client
        return
    server = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0", security=security)
    client = Client(server.port)
    try:
        yield client
    finally:
        await client.channel.close(None)
        await server.close(0)


async def test_tasks_are_submitted_seen_and_cancelled() -> None:
    async with served() as client:
        task_id = await client.submit(type="milk", tenant="elsa", payload=b"\xff", slot="stall")
        task = await client.task(task_id, with_payload=True)
        assert (task.type, task.tenant, task.payload) == ("milk", "elsa", b"\xff")
        assert task.status == wire.TASK_STATUS_WAITING and task.attempts_max == 1
        other = await client.ask(
            "Submit", wire.SubmitRequest(tasks=[wire.TaskSpec(type="milk", slot="stall")])
        )
        assert other.tasks[0].refusal.code == "slot_busy"
        assert other.tasks[0].refusal.task_id == task_id and other.tasks[0].refusal.retryable
        done = await client.ask("Cancel", wire.IdsRequest(ids=[task_id, 99], by="me"))
        assert list(done.answers) == [wire.ACTED_DONE, wire.ACTED_UNKNOWN]
        assert (await client.task(task_id)).status == wire.TASK_STATUS_CANCELLED
        again = await client.ask("Retry", wire.IdsRequest(ids=[task_id]))
        assert list(again.answers) == [wire.ACTED_DONE]
        assert await client.task(99) is None


@pytest.mark.parametrize("everywhere", [True, False])
async def test_many_tasks_of_a_broker_elsewhere_are_asked_for_at_once(everywhere: bool) -> None:
    class Far:
        """A broker in another process: each call is a message."""

        def __init__(self) -> None:
            self.under_way = 0
            self.most: dict[str, int] = {}
            self.calls: dict[str, int] = {}

        async def task(self, task_id: int) -> Task:
            large = int(task_id == 7)
            await self._message("task")
            return Task(task_id, "elsa", "a", Status.WAITING, payload=b"p", payload_bytes=large)

        async def payload(self, task: Task) -> bytes:
            await self._message("payload")
            return b"large"

        async def _message(self, name: str) -> None:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.under_way += 1
            await asyncio.sleep(0)
            self.most[name] = max(self.most.get(name, 0), self.under_way)
            self.under_way -= 1

    far: Any = Far()
    calls = BrokerCalls(far, cast(Any, None))
    who = Asking("ann", admin=everywhere, tenants=("elsa",))
    reply = wire.TasksReply()
    request = wire.TasksRequest(ids=range(1, 41), with_payload=True, with_result=True)
    await calls._tasks(who, request, reply)
    assert [each.payload for each in reply.tasks] == [b"p"] * 6 + [b"large"] + [b"p"] * 33
    assert far.calls == {"task": 40, "payload": 1} and far.most["task"] == 40


async def test_a_leader_without_a_lease_answers_over_grpc_what_its_log_confirms() -> None:
    async with held_broker() as held, served(held.broker) as client:
        await held.broker.put_code("milking", b"archive")
        held.replica.leased = False
        task_id = await client.submit(type="milk")
        assert (await client.task(task_id)).type == "milk" and held.replica.confirmed == 1
        fetch = client.channel.unary_stream(f"/{SERVICE}/FetchCode", None, None)
        said = wire.FetchCodeRequest(name="milking").SerializeToString()
        parts = [wire.FetchCodeReply.FromString(part) async for part in fetch(said)]
        assert [part.data for part in parts] == [b"archive"] and held.replica.confirmed == 2
        held.replica.deposed = True
        reply = await client.ask("Tasks", wire.TasksRequest(ids=[task_id]))
        assert reply.failure.retryable and not reply.tasks


async def test_a_transaction_lets_its_tasks_go_together() -> None:
    async with served() as client:
        begun = await client.ask("BeginTransaction", wire.BeginTransactionRequest(owner="me"))
        request = wire.SubmitRequest(
            tasks=[wire.TaskSpec(type="milk")] * 2, transaction=begun.transaction
        )
        ids = [each.task_id for each in (await client.ask("Submit", request)).tasks]
        assert (await client.task(ids[0])).status == wire.TASK_STATUS_PREPARED
        asked = wire.TransactionRequest(transaction=begun.transaction)
        assert (await client.ask("CommitTransaction", asked)).tasks == 2
        assert (await client.task(ids[0])).status == wire.TASK_STATUS_WAITING
        failed = await client.ask("RollbackTransaction", asked)
        assert failed.failure.code == "unknown_transaction"


async def test_what_a_spec_leaves_out_is_as_usual_and_what_it_says_counts() -> None:
    async with opened() as broker, served(broker) as client:
        parent = await client.submit(type="milk", attempts_max=0, at_most_once=True)
        backoff = wire.Backoff(first_ms=5, jitter_percent=1)
        child = await client.submit(
            type="milk",
            backoff=backoff,
            placement=wire.Placement(group=3, resources=["barn"]),
            parents=[wire.ParentTask(task_id=parent, rule=wire.PARENT_RULE_ALWAYS)],
        )
        assert broker.get(parent).attempts_max == 0 and broker.get(parent).mode == 1
        task = broker.get(child)
        assert (task.backoff.first_ms, task.backoff.factor_percent) == (5, 200)
        assert (task.fixed, task.group, task.resources) == (True, 3, ("barn",))
        assert (await client.task(child)).status == wire.TASK_STATUS_BLOCKED


@pytest.mark.parametrize(
    "spec",
    [
        {"type": ""},
        {"type": "x" * 201},
        {"type": "milk", "payload": bytes(1024 * 1024 + 1)},
        {"type": "milk", "due_ms": 2**63},
        {"type": "milk", "backoff": wire.Backoff(factor_percent=1)},
        {"type": "milk", "parents": [wire.ParentTask(index=5_000)]},
        {"type": "milk", "parents": [wire.ParentTask(task_id=1, rule=UNKNOWN_RULE)]},
    ],
)
async def test_a_task_that_is_none_is_refused_in_words(spec: dict[str, Any]) -> None:
    async with served() as client:
        reply = await client.ask("Submit", wire.SubmitRequest(tasks=[wire.TaskSpec(**spec)]))
        assert reply.failure.code == "invalid_task" and not reply.failure.retryable
        assert len(reply.failure.message) > 10
        assert await client.task(1) is None


async def test_bytes_that_are_no_message_harm_nobody_else() -> None:
    async with served() as client:
        for name in REPLIES:
            with pytest.raises(aio.AioRpcError) as raised:
                await client.ask(name, b"\xff\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        work = client.channel.stream_stream(f"/{SERVICE}/Work", None, None)(None)
        await work.write(b"\xff")
        assert await work.code() is grpc.StatusCode.INVALID_ARGUMENT
        too_many = await client.ask("Cancel", wire.IdsRequest(ids=[1] * 1_001))
        assert too_many.failure.code == "too_large"
        assert await client.submit(type="milk")


async def test_without_the_secret_nothing_is_answered() -> None:
    async with served(security=Security(secret=b"0123456789abcdef")) as client:
        with pytest.raises(aio.AioRpcError) as raised:
            await client.submit(type="milk")
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        client.metadata = (("herdbook-secret-bin", b"0123456789abcdef"),)
        assert await client.submit(type="milk")


class Follower:
    """A broker that does not lead."""

    def __init__(self, leader: str) -> None:
        self.leader = leader

    async def submit(self, *_: Any, **__: Any) -> list[int]:
        raise NotLeader("another one leads", leader=self.leader)


async def test_a_follower_asks_the_leader_and_never_passes_a_call_on_twice() -> None:
    async with served() as leader, served(cast(Broker, Follower(leader.address))) as client:
        assert await client.submit(type="milk") == 1
        async with served(cast(Broker, Follower(client.address))) as other:
            assert (await leader.task(1)).type == "milk"
            reply = await other.ask("Submit", wire.SubmitRequest(tasks=[wire.TaskSpec(type="x")]))
            assert reply.failure.code == "not_leader" and reply.failure.leader == leader.address
    async with served(cast(Broker, Follower("127.0.0.1:1"))) as client:
        reply = await client.ask("Submit", wire.SubmitRequest(tasks=[wire.TaskSpec(type="x")]))
        assert (reply.failure.code, reply.failure.leader) == ("not_leader", "127.0.0.1:1")


async def test_a_real_worker_runs_tasks_over_the_wire_and_leaves_in_peace() -> None:
    async with opened() as broker, served(broker) as client:
        port = GrpcWorkerPort([client.address])
        started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        life = asyncio.create_task(
            serve_worker(
                port,
                WorkerSettings("barn", "p1"),
                PoolSettings(modules=("tests.broker.worker.functions",), processes=1),
                SystemClock(),
                random.Random(1),
                lambda worker, _: started.set_result(worker),
            )
        )
        ids = [await client.submit(type="add", payload=b'{"left":1,"right":2}') for _ in range(20)]
        for task_id in ids:
            task = await client.task(task_id, wait_ms=20_000, with_result=True)
            assert (task.status, task.result) == (wire.TASK_STATUS_FINISHED, b"3")
        running = await client.submit(type="wait_for_ever", payload=b"{}")
        while (await client.task(running)).status != wire.TASK_STATUS_RUNNING:
            continue
        assert list((await client.ask("Cancel", wire.IdsRequest(ids=[running]))).answers) == [
            wire.ACTED_ASKED
        ]
        ended = await client.task(running, wait_ms=20_000)
        assert ended.status == wire.TASK_STATUS_CANCELLED
        (await started).drain()
        assert await life
        await port.close()


async def test_waits_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_service, "_WAITS_MAX", 0)
    async with served() as client:
        task_id = await client.submit(type="milk")
        for _ in range(3):
            reply = await client.ask("Tasks", wire.TasksRequest(ids=[task_id], wait_ms=1))
            assert reply.failure.code == "overloaded" and reply.failure.retryable
        assert (await client.task(task_id)).id == task_id


async def test_addresses_may_change_for_as_long_as_a_program_runs() -> None:
    channels = Channels()
    first = channels.get("127.0.0.1:1")
    for port in range(2, 200):
        channels.get(f"127.0.0.1:{port}")
        assert channels.get("127.0.0.1:1") is first
    assert len(channels._channels) == 64
    await channels.close()


async def test_a_channel_is_replaced_after_certificates_were_read_again() -> None:
    source = [Security(secret=b"the cows come home")]
    channels = Channels(Security.renewed(lambda: source[0]))
    first = channels.get("127.0.0.1:1")
    source[0] = Security(secret=b"the cows are at home")
    renew_all()
    second = channels.get("127.0.0.1:1")
    assert second is not first and channels.get("127.0.0.1:1") is second
    assert await channels.metadata(second) == call_metadata(source[0])
    await channels.close()


class Listener:
    """A broker that only keeps what its worker says, in the order in which it came."""

    def __init__(self) -> None:
        self.link = ScriptedLink(ScriptedPort(), Hello("nobody", "p0", "", (), WorkerLimits(1)))

    async def connect(self, hello: Hello) -> ScriptedLink:
        return self.link


async def test_what_a_worker_says_in_a_burst_comes_in_its_order() -> None:
    listener = Listener()
    async with served(cast(Broker, listener)) as client:
        port = GrpcWorkerPort([client.address])
        link = await port.connect(Hello("barn", "p1", "", (), WorkerLimits(4)))
        said: list[FromWorker] = []
        for number in range(0, 400, 4):
            done = [Completion(number, 1, Ended.FINISHED, bytes(number))]
            said += [
                Heartbeat(number, 1, 2, 3),
                Done(number + 1, 1, done),
                Config(number + 2, WorkerLimits(number)),
                Leaving(number + 3),
            ]
        for each in said:
            await link.send([each])
        await until(lambda: len(listener.link.heard) == len(said))
        assert listener.link.heard == said
        await link.close()
        await port.close()


class EndedDuringAWrite:
    """Channels on which the broker ends the first calls while the worker writes."""

    def __init__(self, ended: int, details: str = "Internal error from Core") -> None:
        self.ended, self.details, self.opened, self.cancelled = ended, details, 0, 0

    def get(self, _: str) -> "EndedDuringAWrite":
        return self

    async def metadata(self, _: object) -> None:
        return None

    def stream_stream(self, *_: object) -> Any:
        self.opened += 1
        return lambda **_: self

    async def write(self, _: bytes) -> None:
        if self.opened <= self.ended:
            nothing = aio.Metadata()
            raise aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, self.details, "")

    async def read(self) -> bytes:
        nothing = aio.Metadata()
        refused = grpc.StatusCode.UNAUTHENTICATED
        raise aio.AioRpcError(refused, nothing, nothing, "a token is needed", "")

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.mark.parametrize("ended", [1, 2, 3])
async def test_a_worker_greets_again_if_the_call_ends_during_the_write(
    monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    """The call that follows says why the broker ended it."""
    channels = EndedDuringAWrite(ended)
    monkeypatch.setattr("broker.wire.grpc_port.Channels", lambda *_: channels)
    port = GrpcWorkerPort(["broker:1"])
    hello = Hello("elsa", "p", "here", ("milk",), WorkerLimits(1))
    if ended < 3:
        await port.connect(hello)
    else:
        with pytest.raises(SessionLost, match="ended the link"):
            await port.connect(hello)
    assert (channels.opened, channels.cancelled) == (min(ended + 1, 3), ended)


async def test_an_internal_error_of_the_broker_is_told_with_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = EndedDuringAWrite(1, "the proxy is misconfigured")
    monkeypatch.setattr("broker.wire.grpc_port.Channels", lambda *_: channels)
    with pytest.raises(BrokerUnavailable, match="misconfigured"):
        await GrpcWorkerPort(["broker:1"]).connect(
            Hello("elsa", "p", "here", ("milk",), WorkerLimits(1))
        )
    assert channels.opened == 1


async def test_a_worker_that_is_refused_while_it_greets_hears_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = EndedDuringAWrite(2)
    monkeypatch.setattr("broker.wire.grpc_port.Channels", lambda *_: channels)
    hello = Hello("elsa", "p", "here", ("milk",), WorkerLimits(1))
    link = await GrpcWorkerPort(["broker:1"]).connect(hello)
    with pytest.raises(AccessDenied, match="a token is needed"):
        await link.receive()
