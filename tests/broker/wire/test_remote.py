"""A broker far away answers as one in this process does."""

import inspect
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from broker.calls import Calls
from broker.commands import Answer, Refusal, Schedule, Spec
from broker.errors import (
    BrokerUnavailable,
    InvalidSetting,
    InvalidTask,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TooLarge,
    UnknownSchedule,
    UnknownTask,
    WaitTimedOut,
)
from broker.reading import TaskFilter
from broker.service import Broker
from broker.settings import Limit, Pause, Rate, Setting, TenantLimits
from broker.task import Status
from broker.wire.asking import METHODS
from broker.wire.calling import CODE_BYTES_MAX
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_server import GrpcBrokerServer
from broker.wire.grpc_service import SERVICE
from broker.wire.remote import RemoteCalls
from engine.ports.clock import SystemClock
from tests.broker.service.yard import opened


def remote(*ports: int, leaderless_ms: int = 0) -> RemoteCalls:
    return RemoteCalls(
        [f"127.0.0.1:{port}" for port in ports],
        SystemClock(),
        random.Random(1),
        leaderless_ms=leaderless_ms,
    )


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Broker, RemoteCalls]]:
    async with opened() as broker:
        server = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
        calls = remote(server.port)
        try:
            yield broker, calls
        finally:
            await calls.close()
            await server.close(0)


def test_the_remote_broker_has_every_call_of_the_contract() -> None:
    wanted = {name for name, each in vars(Calls).items() if inspect.iscoroutinefunction(each)}
    assert wanted == {*METHODS, "connect"}
    for name in wanted:
        assert inspect.signature(getattr(RemoteCalls, name)) == inspect.signature(
            getattr(Calls, name)
        )


async def test_tasks_go_there_and_back() -> None:
    async with served() as (broker, calls):
        first, refused = await calls.submit(
            [Spec("milk", "elsa", bytes(500), slot="a"), Spec("milk", slot="a")]
        )
        assert isinstance(first, int) and isinstance(refused, Refusal)
        assert refused.code == "slot_busy" and refused.task_id == first
        task = await calls.task(first)
        assert task == broker.get(first) and await calls.payload(task) == bytes(500)
        assert await calls.result(task) == b""
        page = await calls.tasks(TaskFilter(frozenset({Status.WAITING}), type="milk"))
        assert page.tasks == [task]
        assert await calls.slots() == [("a", first)]
        assert (await calls.queues())[0].length == 1
        assert (await calls.counts())[Status.WAITING] == 1
        assert await calls.cancel([first, 99]) == [Answer.DONE, Answer.UNKNOWN]
        assert (await calls.wait(first)).status is Status.CANCELLED
        assert await calls.retry([first]) == [Answer.DONE]
        await calls.cancel([first])
        assert await calls.delete([first]) == [Answer.DONE]
        with pytest.raises(UnknownTask, match=f"^there is no task {first} ") as raised:
            await calls.task(first)
        assert raised.value.task_id == first
        assert await calls.now_ms() > 0 and await calls.workers() == []


async def test_many_tasks_go_in_messages_that_fit() -> None:
    async with served() as (_, calls):
        specs = [Spec("milk", payload=bytes(900_000)) for _ in range(12)]
        assert await calls.submit(specs) == list(range(1, 13))
        assert await calls.submit([Spec("milk")] * 2_500) == list(range(13, 2_513))
        with pytest.raises(TooLarge):
            await calls.submit([Spec("milk")] * 2_500, atomic=True)
        with pytest.raises(InvalidTask, match="type"):
            await calls.submit([Spec("")])
        with pytest.raises(InvalidTask, match=r"^task 1001 of 1001: type: "):
            await calls.submit([*[Spec("milk")] * 1_000, Spec("")])
        assert (await calls.submit([Spec("milk")])) == [2_513]


async def test_a_wait_ends_when_its_time_is_up() -> None:
    async with served() as (_, calls):
        [task_id] = await calls.submit([Spec("milk")])
        assert isinstance(task_id, int)
        with pytest.raises(WaitTimedOut):
            await calls.wait(task_id, 20)


async def test_transactions_schedules_settings_and_code() -> None:
    async with served() as (_, calls):
        number = await calls.begin("me", 5_000)
        await calls.submit([Spec("milk")], transaction=number)
        assert [each.owner for each in await calls.transactions()] == ["me"]
        assert await calls.commit(number) == 1
        assert await calls.rollback(await calls.begin()) == 0
        settings: list[tuple[str, str, Setting]] = [
            ("pause", "type:milk", Pause("cold")),
            ("rate", "tenant:elsa", Rate(2.5, 3)),
            ("resource", "barn", Limit(4)),
            ("tenant", "elsa", TenantLimits(2.0, 1, 5)),
        ]
        for setting in settings:
            assert await calls.set(*setting)
        assert sorted(await calls.settings_of(), key=lambda each: each[:2]) == settings
        assert [each.name for each in await calls.resources()]
        assert await calls.set("resource", "barn", None)
        with pytest.raises(InvalidSetting):
            await calls.set("rate", "nobody", Rate(1.0))
        await calls.set_schedule(Schedule("nightly", Spec("milk"), "0 2 * * *"), "me")
        await calls.pause_schedule("nightly", paused=True)
        assert [(each.name, each.paused) for each in await calls.schedules()] == [("nightly", True)]
        await calls.delete_schedule("nightly")
        with pytest.raises(UnknownSchedule):
            await calls.delete_schedule("nightly")
        await calls.put_code("pool", b"zip", 60_000, "me")
        assert [each.name for each in await calls.code_pools()] == ["pool"]
        await calls.delete_code("pool")
        with pytest.raises(TooLarge):
            await calls.put_code("pool", bytes(CODE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("open", b""), ("connect", b"\x90"), ("task", b""), ("task", b"\x91\xa1x"), ("set", b"\x90")],
)
async def test_what_cannot_be_asked_is_refused_in_words(name: str, arguments: bytes) -> None:
    async with opened() as broker:
        server = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
        async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary("/herdbook.broker.v1.Broker/Ask", None, None)
            asked = wire.AskRequest(name=name, arguments=arguments).SerializeToString()
            reply = wire.AskReply.FromString(await call(asked))
            assert reply.failure.code == "invalid_task" and name in reply.failure.message
        await server.close(0)


class Follower:
    """A broker that does not lead, and perhaps knows who does."""

    def __init__(self, leader: str = "") -> None:
        self.leader = leader

    async def submit(self, *_: Any, **__: Any) -> list[int]:
        raise NotLeader("somebody else leads", leader=self.leader)

    async def now_ms(self) -> int:
        raise NotLeader("somebody else leads", leader=self.leader)


class Filling:
    """A broker that takes one message, and then has no room."""

    def __init__(self) -> None:
        self.taken = 0

    async def submit(self, specs: list[Spec], **_: Any) -> list[int]:
        if self.taken:
            raise Overloaded("no room")
        self.taken = len(specs)
        return list(range(1, self.taken + 1))


async def test_a_batch_of_which_a_part_was_taken_has_an_unknown_outcome() -> None:
    server = await GrpcBrokerServer.start(cast(Broker, Filling()), listen="127.0.0.1:0")
    calls = remote(server.port)
    with pytest.raises(OutcomeUnknown, match="1000 of 1001 tasks were taken, then: no room"):
        await calls.submit([Spec("milk")] * 1_001)
    await calls.close()
    await server.close(0)


class Losing:
    """A broker whose answers to submits get lost on the way, as some status of gRPC says."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self.submits = 0
        self._status = status

    async def ask(self, data: bytes, context: Any) -> bytes:
        self.submits += wire.AskRequest.FromString(data).name == "submit"
        await context.abort(self._status, "upstream connect error or reset before headers")
        raise AssertionError

    async def asks(self, _: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        asks = wire.AskRequests.FromString(await context.read()).asks
        self.submits += sum(each.name == "submit" for each in asks)
        await context.abort(self._status, "upstream connect error or reset before headers")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        handlers = {
            "Ask": grpc.unary_unary_rpc_method_handler(self.ask),
            "Asks": grpc.stream_stream_rpc_method_handler(self.asks),
        }
        server = aio.server(handlers=[grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)


_LOSSES = ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("status", _LOSSES)
@pytest.mark.parametrize("payload_bytes", [4, 600_000])
@pytest.mark.parametrize("forwarded", [False, True])
async def test_what_may_have_been_taken_is_never_sent_again(
    status: str, payload_bytes: int, *, forwarded: bool
) -> None:
    losing = Losing(grpc.StatusCode[status])
    async with losing.served() as port:
        follower = None
        if forwarded:
            broker = cast(Broker, Follower(f"127.0.0.1:{port}"))
            follower = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
            port = follower.port
        calls = remote(port, leaderless_ms=200)
        with pytest.raises(OutcomeUnknown):
            await calls.submit([Spec("milk", payload=bytes(payload_bytes))])
        assert losing.submits == 1
        with pytest.raises(BrokerUnavailable):
            await calls.now_ms()
        await calls.close()
        if follower is not None:
            await follower.close(0)


async def test_the_leader_is_looked_for_until_the_time_for_that_is_up() -> None:
    async with opened() as broker:
        follower = await GrpcBrokerServer.start(cast(Broker, Follower()), listen="127.0.0.1:0")
        leader = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
        calls = remote(follower.port, leader.port, leaderless_ms=10_000)
        assert await calls.submit([Spec("milk")]) == [1]
        await calls.close()
        lost = remote(follower.port)
        with pytest.raises(NotLeader, match="somebody else leads"):
            await lost.submit([Spec("milk")])
        await lost.close()
        await follower.close(0)
        await leader.close(0)
        nobody = remote(leader.port)
        with pytest.raises(BrokerUnavailable):
            await nobody.submit([Spec("milk")])
        await nobody.close()
