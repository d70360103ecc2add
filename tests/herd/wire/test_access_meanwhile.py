"""What is taken back while a transaction is open, or while a call goes on, counts at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc import aio

from engine.access.principal import Grant, Kind, Principal, Right
from engine.ports.clock import SystemClock
from engine.transport.grpc_login import Credentials
from herd.errors import AccessDenied
from herd.wire.grpc_generated import herd_pb2 as wire
from herd.wire.grpc_leases import Leases
from tests.broker.worker.looking import until
from tests.engine.access.known_users import user
from tests.herd.wire.test_access import NODE, House, logged_in, opened

COUNT: Final = "SELECT count(*) FROM cow"
Given = tuple[Kind, str, Right]
READS: Final[Given] = ("tablespace", "shop", "read")
WRITES: Final[Given] = ("tablespace", "shop", "write")


async def again(house: House) -> None:
    """Users have been looked up anew since."""
    asked = len(house.users.asked)
    await until(lambda: len(house.users.asked) >= asked + 2)


@pytest.mark.parametrize(
    "text", ["INSERT INTO cow VALUES (1, 'Alma')", "CREATE TABLE calf (id INT)"]
)
async def test_nothing_is_committed_by_a_right_that_was_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("engine.transport.serving.CHECK_S", 0.01)
    async with opened(tmp_path) as house, house.remote(logged_in("ann")) as remote:
        for by_text in (False, True):
            session = await remote.session("shop")
            await session.begin()
            await session.execute(text)
            grant = READS if text.startswith("INSERT") else WRITES
            house.users.users["ann"] = user("ann", grant)
            await again(house)
            with pytest.raises(AccessDenied):
                await (session.execute("COMMIT") if by_text else session.commit())
            assert (await session.execute(COUNT)).rows == [(0,)]
            assert (await session.execute("SHOW TABLES")).rows == [("cow",)]
            await session.close()
            house.users.users["ann"] = user("ann", ("tablespace", "shop", "admin"))
            await again(house)


async def test_who_only_looked_may_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as house, house.remote(logged_in("cat")) as remote:
        session = await remote.session("shop")
        await session.begin()
        assert (await session.execute(COUNT)).rows == [(0,)]
        await session.commit()
        await session.close()


async def test_a_session_that_is_opened_for_somebody_may_do_no_more_than_they(
    tmp_path: Path,
) -> None:
    cat = Principal("cat", grants=(Grant(*READS),))
    async with opened(tmp_path) as house:
        async with house.remote(NODE) as remote:
            for herd in (remote, house.herd):
                session = await herd.session("shop", whose=cat)
                assert (await session.execute(COUNT)).rows == [(0,)]
                with pytest.raises(AccessDenied, match="cat may not write"):
                    await session.execute("INSERT INTO cow VALUES (1, 'Alma')")
                await session.close()
            with pytest.raises(AccessDenied, match="cat may not read"):
                await remote.session("barn", whose=cat)
        async with house.remote(logged_in("cat")) as remote:
            with pytest.raises(AccessDenied, match="no administrator"):
                await remote.session("shop", whose=Principal("ben", grants=(Grant(*WRITES),)))


# gRPC


@asynccontextmanager
async def calling(house: House, name: str) -> AsyncIterator[tuple[aio.Channel, Any]]:
    """A channel, and what a user's calls carry."""
    assert house.grpc is not None
    async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
        yield channel, await Credentials(logged_in(name), SystemClock()).metadata(channel)


async def session_of(channel: aio.Channel, metadata: Any) -> bytes:
    """A session in `shop`."""
    call = channel.unary_unary("/herdbook.v1.Tablespaces/Open", None, None)
    data = wire.OpenRequest(tablespace="shop").SerializeToString()
    token = wire.OpenReply.FromString(await call(data, metadata=metadata)).session
    assert token
    return bytes(token)


async def test_a_grant_that_is_taken_back_counts_in_sessions_over_grpc(tmp_path: Path) -> None:
    async with opened(tmp_path) as house, calling(house, "ben") as (channel, metadata):
        session = await session_of(channel, metadata)
        call = channel.unary_stream("/herdbook.v1.Tablespaces/Execute", None, None)

        async def told(number: int) -> str:
            text = f"INSERT INTO cow VALUES ({number}, 'Alma')"
            request = wire.ExecuteRequest(session=session, text=text).SerializeToString()
            async for data in call(request, metadata=metadata):
                return str(wire.ExecuteReply.FromString(data).failure.name)
            raise AssertionError("no reply")

        assert await told(1) == ""
        house.users.users["ben"] = user("ben", READS)
        assert await told(2) == "AccessDenied"
        assert await house.told(NODE, COUNT) == [(1,)]


@pytest.mark.parametrize("name", ["Scan", "Execute"])
async def test_a_stream_over_grpc_ends_with_its_users_welcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("herd.wire.grpc_service.CHECK_S", 0.0)
    async with opened(tmp_path) as house:
        async with house.remote(NODE) as remote:
            session = await remote.session("shop")
            rows = [(number, "Alma" * 500) for number in range(3_000)]
            await session.execute_many("INSERT INTO cow VALUES (?, ?)", rows)
            await session.close()
        async with calling(house, "cat") as (channel, metadata):
            request: Any = wire.ScanRequest(tablespace="shop", table="cow")
            if name == "Execute":
                token = await session_of(channel, metadata)
                request = wire.ExecuteRequest(session=token, text="SELECT * FROM cow")
            _remove_when_answered(monkeypatch, house)
            call = channel.unary_stream(f"/herdbook.v1.Tablespaces/{name}", None, None)
            heard = 0
            with pytest.raises(aio.AioRpcError) as ended:
                async for _ in call(request.SerializeToString(), metadata=metadata):
                    heard += 1
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED and heard <= 1


def _remove_when_answered(monkeypatch: pytest.MonkeyPatch, house: House) -> None:
    """Once the first call of a stream is answered its user is gone."""

    def removing(ask: Any) -> Any:
        async def answer(*given: Any) -> Any:
            answered = await ask(*given)
            house.users.users.pop("cat", None)
            return answered

        return answer

    monkeypatch.setattr(Leases, "ask", removing(Leases.ask))
    monkeypatch.setattr(Leases, "other", removing(Leases.other))


async def test_rows_that_come_for_long_are_written_by_who_is_still_welcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herd.wire.grpc_service.CHECK_S", 0.0)
    async with opened(tmp_path) as house, calling(house, "ben") as (channel, metadata):
        session = await session_of(channel, metadata)
        text = "INSERT INTO cow VALUES (?, ?)"
        path = "/herdbook.v1.Tablespaces/ExecuteMany"
        begin: Any = channel.stream_unary(path, None, None)
        call = begin(metadata=metadata)
        asked = len(house.users.asked)
        request = wire.ExecuteManyRequest(session=session, text=text, rows=b"\x91\x92\x01\xa1x")
        await call.write(request.SerializeToString())
        await until(lambda: len(house.users.asked) > asked)
        del house.users.users["ben"]
        with pytest.raises(aio.AioRpcError) as ended:
            await call.write(request.SerializeToString())
            await call.done_writing()
            await call
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await house.told(NODE, COUNT) == [(0,)]
