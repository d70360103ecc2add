"""The public wire, as a client of another language meets it: gRPC, MessagePack and Arrow alone."""

import asyncio
import datetime
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pyarrow
import pytest
from grpc import aio

from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from engine.transport.grpc_security import SECRET_METADATA
from engine.transport.security import NO_SECURITY, Security
from herd.wire.grpc_generated import herd_pb2 as wire
from herd.wire.grpc_server import GrpcSessionServer
from herd.wire.grpc_service import SERVICE
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from herd.wire.values import packed, unpack_extension
from tests.herd.wire.test_route import NodeOf
from tests.herd.wire.wiring import embedded

UNARY: dict[str, Any] = {
    "Open": wire.OpenReply,
    "Begin": wire.SessionReply,
    "Commit": wire.SessionReply,
    "Rollback": wire.SessionReply,
    "Renew": wire.SessionReply,
    "Close": wire.SessionReply,
    "Outcome": wire.OutcomeReply,
    "Names": wire.NamesReply,
    "Describe": wire.DescribeReply,
    "Get": wire.GetReply,
    "Put": wire.CountReply,
    "Delete": wire.CountReply,
}


def values(*given: Any) -> bytes:
    """An array of MessagePack."""
    return msgspec.msgpack.encode([packed(value) for value in given])


class Client:
    """Calls by hand."""

    def __init__(self, channel: aio.Channel, server: GrpcSessionServer, secret: bytes) -> None:
        self.channel = channel
        self.server = server
        self.metadata = [(SECRET_METADATA, secret)] if secret else []

    async def call(self, name: str, request: Any) -> Any:
        """One request, one reply."""
        kind = UNARY[name]
        ask = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return await ask(request, metadata=self.metadata)

    async def stream(self, name: str, request: Any, kind: Any) -> list[Any]:
        """One request, all replies."""
        ask = self.channel.unary_stream(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return [reply async for reply in ask(request, metadata=self.metadata)]

    async def execute(self, session: bytes, text: str, *parameters: Any) -> Any:
        """A statement: its first reply, and its rows."""
        request = wire.ExecuteRequest(session=session, text=text, parameters=values(*parameters))
        replies = await self.stream("Execute", request, wire.ExecuteReply)
        pieces = [
            pyarrow.ipc.open_stream(reply.arrow).read_all() for reply in replies if reply.arrow
        ]
        return replies[0], pyarrow.concat_tables(pieces).to_pylist() if pieces else []

    async def many(self, session: bytes, text: str, *batches: Sequence[Sequence[Any]]) -> Any:
        """A statement for rows in several messages."""
        ask = self.channel.stream_unary(
            f"/{SERVICE}/ExecuteMany",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.ExecuteReply.FromString,
        )
        requests = [wire.ExecuteManyRequest(session=session, text=text)]
        requests += [wire.ExecuteManyRequest(rows=values(*batch)) for batch in batches]
        return await ask(iter(requests), metadata=self.metadata)

    async def open(self, **more: Any) -> bytes:
        """A session."""
        reply = await self.call("Open", wire.OpenRequest(tablespace="default", **more))
        assert not reply.HasField("failure"), reply.failure
        session: bytes = reply.session
        return session


@asynccontextmanager
async def serving(
    path: Path, security: Security = NO_SECURITY, shown: bytes = b""
) -> AsyncIterator[Client]:
    """A folder's tablespaces over gRPC, and a client."""
    async with embedded(path) as herd:
        await herd.tablespace()
        service = HerdService(NodeOf(herd), herd.workers, WireSettings(piece_bytes=100_000))
        server = await GrpcSessionServer.start(
            service,
            listen="127.0.0.1:0",
            clock=SystemClock(),
            rng=random.Random(5),
            security=security,
        )
        try:
            async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                yield Client(channel, server, shown)
        finally:
            await server.close(grace_ms=0)


async def test_statements_rows_and_transactions_over_grpc(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session = await client.open()
        made, rows = await client.execute(
            session, "CREATE TABLE cow (id INT PRIMARY KEY, milk DECIMAL(6, 2), born DATE)"
        )
        assert made.kind == "CREATE TABLE" and rows == []
        born = datetime.date(2020, 2, 29)
        told, _ = await client.execute(
            session, "INSERT INTO cow VALUES (?, ?, ?)", 1, Decimal("21.50"), born
        )
        assert (told.kind, told.count) == ("INSERT", 1)
        _, rows = await client.execute(session, "SELECT * FROM cow WHERE id = ?", 1)
        assert rows == [{"id": 1, "milk": Decimal("21.50"), "born": born}]
        begun = await client.call("Begin", wire.BeginRequest(session=session))
        assert begun.transaction == wire.TRANSACTION_OPEN
        await client.execute(session, "DELETE FROM cow")
        rolled = await client.call("Rollback", wire.SessionRequest(session=session))
        assert rolled.transaction == wire.TRANSACTION_NONE
        many = await client.many(
            session, "INSERT INTO cow VALUES (?, ?, NULL)", [[2, 1], [3, 1]], [[4, Decimal(2)]]
        )
        assert many.count == 3
        _, rows = await client.execute(session, "SELECT count(*) AS n, sum(milk) AS m FROM cow")
        assert rows == [{"n": 4, "m": Decimal("25.50")}]


async def test_a_large_result_comes_in_several_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session = await client.open()
        text = "SELECT i, repeat('x', 100) AS x FROM range(5000) r(i) ORDER BY i"
        request = wire.ExecuteRequest(session=session, text=text)
        replies = await client.stream("Execute", request, wire.ExecuteReply)
        assert len(replies) > 3 and replies[0].count == 5_000
        _, rows = await client.execute(session, text)
        assert [row["i"] for row in rows] == list(range(5_000))
        assert client.server.leases.service.results_bytes == 0


async def test_a_failure_has_class_code_place_and_hint(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session = await client.open()
        told, _ = await client.execute(session, "SELECT * FROM bull")
        failure = told.failure
        assert (failure.name, failure.code, failure.place) == ("NoSuchTable", "42P01", 14)
        assert not failure.retryable and failure.message
        lost = await client.call("Begin", wire.BeginRequest(session=b"nobody"))
        assert lost.failure.name == "SessionLost" and lost.failure.session_lost
        odd = wire.ExecuteRequest(session=session, text="SELECT ?", parameters=b"\xc1")
        assert (await client.stream("Execute", odd, wire.ExecuteReply))[0].failure.code == "HY000"
        missing = await client.call("Open", wire.OpenRequest(tablespace="farm"))
        assert "no tablespace farm" in missing.failure.message
        odd_lease = wire.OpenRequest(tablespace="default", lease_ms=1)
        assert (await client.call("Open", odd_lease)).failure.name == "InterfaceError"


async def test_a_commit_can_be_asked_about(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        name = b"c" * 16
        session = await client.open(without_autocommit=True, client=name)
        await client.execute(session, "CREATE TABLE cow (id INT PRIMARY KEY)")
        await client.call("Commit", wire.CommitRequest(session=session, sequence=1))
        await client.execute(session, "INSERT INTO cow VALUES (1)")
        await client.call("Commit", wire.CommitRequest(session=session, sequence=2))
        told = []
        for sequence in (1, 2, 3):
            request = wire.OutcomeRequest(tablespace="default", client=name, sequence=sequence)
            told.append(await client.call("Outcome", request))
        assert [each.committed for each in told] == [False, True, False]
        assert told[0].failure.name == "CommitUnknown"
        assert not told[1].HasField("failure") and not told[2].HasField("failure")
        await client.execute(session, "INSERT INTO cow VALUES (2)")
        late = await client.call("Commit", wire.CommitRequest(session=session, sequence=3))
        assert late.failure.name == "TransactionEnded"


async def test_a_session_that_is_not_heard_of_is_rolled_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session, other = await client.open(lease_ms=1_000), await client.open()
        await client.execute(session, "CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        await client.execute(session, "INSERT INTO cow VALUES (1, 0)")
        await client.call("Begin", wire.BeginRequest(session=session))
        await client.execute(session, "UPDATE cow SET n = 1")
        told, _ = await client.execute(other, "UPDATE cow SET n = 2 WHERE id = 1")
        assert told.count == 1
        renewed = await client.call("Renew", wire.SessionRequest(session=session))
        assert renewed.failure.session_lost
        _, rows = await client.execute(other, "SELECT n FROM cow")
        assert rows == [{"n": 2}]


async def test_rows_without_sql_over_grpc(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session = await client.open()
        await client.execute(session, "CREATE TABLE cow (id INT PRIMARY KEY, milk DECIMAL(6, 2))")
        where: dict[str, Any] = {"tablespace": "default", "table": "cow"}
        rows = [{"id": number, "milk": packed(Decimal(number))} for number in range(1_200)]
        put = wire.PutRequest(**where, rows=msgspec.msgpack.encode(rows))
        assert (await client.call("Put", put)).count == 1_200
        got = await client.call("Get", wire.GetRequest(**where, keys=values(5, 9_999)))
        decoded = msgspec.msgpack.Decoder(ext_hook=unpack_extension).decode(got.rows)
        assert decoded == [{"id": 5, "milk": Decimal("5.00")}, None]
        scan = wire.ScanRequest(**where, first=values(100), last=values(1_150))
        replies = await client.stream("Scan", scan, wire.GetReply)
        found = [
            row
            for reply in replies
            for row in msgspec.msgpack.Decoder(ext_hook=unpack_extension).decode(reply.rows)
        ]
        assert [row["id"] for row in found] == list(range(100, 1_151)) and len(replies) == 3
        gone = wire.DeleteRequest(**where, keys=values(1, 2, 5_000))
        assert (await client.call("Delete", gone)).count == 2
        described = await client.call("Describe", wire.DescribeRequest(**where))
        assert [column.type for column in described.columns] == ["INTEGER", "DECIMAL(6,2)"]
        assert list(described.primary_key) == ["id"]
        assert list((await client.call("Names", wire.NamesRequest())).names) == ["default"]
        again = wire.PutRequest(**where, rows=msgspec.msgpack.encode([{"id": 3}]), only_new=True)
        assert (await client.call("Put", again)).failure.code == "23505"
        none = await client.call("Get", wire.GetRequest(tablespace="default", table="bull"))
        assert none.failure.name == "NoSuchTable"


async def test_who_has_no_secret_is_refused_in_one_sentence(tmp_path: Path) -> None:
    secret = b"s" * 16
    async with serving(tmp_path, Security(secret=secret)) as client:
        with pytest.raises(aio.AioRpcError) as raised:
            await client.open()
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "secret" in (raised.value.details() or "")
        client.metadata = [(SECRET_METADATA, secret)]
        assert await client.open()


async def test_oversized_and_garbled_requests_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        session = await client.open()
        huge = wire.ExecuteRequest(session=session, text="SELECT 1", parameters=b"x" * (9 << 20))
        with pytest.raises(aio.AioRpcError) as raised:
            await client.stream("Execute", huge, wire.ExecuteReply)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        raw: Any = client.channel.unary_unary(f"/{SERVICE}/Open", None, None)
        with pytest.raises(aio.AioRpcError) as garbled:
            await raw(b"\xff\xff\xff\xff")
        assert garbled.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await client.execute(session, "SELECT 1 AS one"))[1] == [{"one": 1}]


async def test_a_secret_is_asked_for_in_the_clear_on_this_machine_only(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        service = HerdService(NodeOf(herd), herd.workers)
        with pytest.raises(InvalidRequest, match="TLS"):
            await GrpcSessionServer.start(
                service,
                listen="0.0.0.0:0",
                clock=SystemClock(),
                rng=random.Random(5),
                security=Security(secret=b"s" * 16),
            )
    assert asyncio.all_tasks() == {asyncio.current_task()}
