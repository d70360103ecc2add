"""Holders of read tokens at bookies: what they may read, and that they may do nothing else."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import msgspec
import pytest
from grpc import aio

from engine.access.door import ReaderDoor
from engine.access.shares import part_of
from engine.access.shown import ShownToken
from engine.access.tokens import READ, SESSION, Claims, sign
from engine.connecting import Wire, make_transport
from engine.errors import AccessRefused, BookieUnavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.limits import ENTRY_BYTES_MAX, MIB
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.transport import server_connection
from engine.transport.contract import Bookie, LedgerFacts, ReadReply, ReadRequest, Status
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import ErrorCode, Kind, decode_error, frame_header
from engine.transport.grpc_generated import bookie_pb2
from engine.transport.grpc_server import GrpcServer
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.messages import Connect, Read, WaitLac, encode
from engine.transport.readable import ReadableBookie
from engine.transport.security import NO_SECURITY, Security
from tests.engine.access.known_users import KEY, SECRET
from tests.engine.transport.bookie_contract import KEY as LEDGER_KEY
from tests.engine.transport.bookie_contract import append, facts_of, runs_of
from tests.engine.transport.grpc_wiring import GrpcTransport, until
from tests.engine.transport.model_bookie import ModelBookie
from tests.engine.transport.tcp_wiring import RawEnd, TcpHouse

NODE: Final = Security(secret=SECRET)
SHOP: Final = 1
BARN: Final = 2
NOBODYS: Final = 3
UNKNOWN: Final = 4
OWNERS: Final = {SHOP: {"owner": b"herd:shop"}, BARN: {"owner": b"herd:barn"}, NOBODYS: {}}
METHODS: Final = [each.name for each in bookie_pb2.DESCRIPTOR.services_by_name["Bookie"].methods]
CLOCK: Final = SystemClock()


class Shelf(ModelBookie):
    """A bookie that knows whose its ledgers are."""

    def custom_of(self, ledger_id: int) -> dict[str, bytes] | None:
        return next((dict(each.custom) for each in self.facts if each.ledger_id == ledger_id), None)


def token(
    use: Any = READ, expires_ms: int = 2**52, key: bytes = KEY, *names: str, user: str = "ann"
) -> str:
    named = tuple(("tablespace", name) for name in names or ("shop",))
    return sign(Claims(use, user, expires_ms, named), key)  # type: ignore[arg-type]


def reader(shown: str) -> Security:
    """Who comes with a read token."""
    return Security(read_token=shown)


class Wired:
    """A bookie with one entry in each ledger, behind both wires."""

    def __init__(self, shelf: Shelf, house: TcpHouse, grpc_server: GrpcServer) -> None:
        self.shelf = shelf
        self.house = house
        self.grpc = grpc_server
        self.grpc_transports: list[GrpcTransport] = []

    async def framed(self, security: Security) -> Bookie:
        return await (await self.house.transport(security)).connect("a")

    async def over_grpc(self, security: Security) -> Bookie:
        made = GrpcTransport(f"127.0.0.1:{self.grpc.port}", security)
        self.grpc_transports.append(made)
        return await made.connect("a")


@asynccontextmanager
async def wired(settings: FramedSettings | None = None) -> AsyncIterator[Wired]:
    shelf, door = Shelf("a"), ReaderDoor(lambda: (KEY,), CLOCK)
    house = TcpHouse([shelf], NODE, None)
    house.server = FramedServer(cluster_id="c", security=NODE, door=door, settings=settings)
    await house.start()
    server = await GrpcServer.start({"a": shelf}, listen="127.0.0.1:0", security=NODE, door=door)
    made = Wired(shelf, house, server)
    for ledger_id in (SHOP, BARN, NOBODYS, UNKNOWN):
        await append(shelf, runs_of(ledger_id, 0, [[b"milk"]], lac=-1))
    shelf.facts = [
        msgspec.structs.replace(facts, custom=OWNERS[facts.ledger_id])
        for facts in shelf.facts
        if facts.ledger_id in OWNERS
    ]
    shelf.calls.clear()
    try:
        yield made
    finally:
        for transport in made.grpc_transports:
            await transport.close()
        await house.close()
        await server.close(0)


Reach = Callable[[Wired, Security], Awaitable[Bookie]]
WIRES: Final = pytest.mark.parametrize("reach", [Wired.framed, Wired.over_grpc])


def read(ledger_id: int, fence_key: bytes | None = None) -> ReadRequest:
    return ReadRequest(ledger_id, 0, 0, 100, fence_key)


@WIRES
async def test_a_reader_reads_ledgers_of_its_owner_alone(reach: Reach) -> None:
    async with wired() as made:
        bookie = await reach(made, reader(token()))
        reply = await bookie.read(read(SHOP))
        assert [run.body for run in reply.runs] == [b"milk"]
        assert (await bookie.wait_lac(SHOP, -2, 0)).status is Status.OK
        for other in (BARN, NOBODYS, UNKNOWN):
            reply = await bookie.read(read(other))
            assert (reply.status, reply.runs) == (Status.UNAUTHORIZED, ())
            assert (await bookie.wait_lac(other, -2, 0)).status is Status.UNAUTHORIZED
        assert (await bookie.read(read(9))).status is Status.NO_SUCH_LEDGER


@WIRES
async def test_a_reader_changes_nothing(reach: Reach) -> None:
    async with wired() as made:
        bookie = await reach(made, reader(token()))
        before = list(made.shelf.facts)
        assert (await append(bookie, runs_of(SHOP, 1, [[b"more"]]))).status is not Status.OK
        new: LedgerFacts = facts_of(SHOP)
        bookie.record(new, LEDGER_KEY)
        bookie.confirm(SHOP, 0)
        try:
            assert (await bookie.fence(SHOP, LEDGER_KEY)).status is not Status.OK
        except (AccessRefused, BookieUnavailable):
            pass
        assert (await bookie.read(read(SHOP, LEDGER_KEY))).status is Status.UNAUTHORIZED
        assert made.shelf.facts == before
        assert not [call for call in made.shelf.calls if not call.startswith("read")]


@WIRES
@pytest.mark.parametrize(
    "security",
    [
        NO_SECURITY,
        Security(secret=b"the cows come home at ten"),
        reader("hb1.x.y"),
        reader("token-ann"),
        reader(token(READ, 1)),
        reader(token(SESSION)),
        reader(token(READ, 2**52, bytes(32))),
        Security(user="ann", password="ann's word"),
    ],
    ids=lambda each: repr(each)[-40:],
)
async def test_nobody_else_is_let_in(reach: Reach, security: Security) -> None:
    async with wired() as made:
        with pytest.raises(AccessRefused):
            await reach(made, security)


@WIRES
async def test_a_token_that_expires_reads_no_more(
    reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired() as made:
        now_ms = CLOCK.wall_ms()
        bookie = await reach(made, reader(token(READ, now_ms + 60_000)))
        assert (await bookie.read(read(SHOP))).status is Status.OK
        over_ms = now_ms + 60_000 + CLOCK_DIFFERENCE_MS
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: over_ms - 1)
        assert (await bookie.read(read(SHOP))).status is Status.OK
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: over_ms)
        try:
            assert (await bookie.read(read(SHOP))).status is not Status.OK
        except (AccessRefused, BookieUnavailable):
            pass


@pytest.mark.parametrize("wire", ["framed", "grpc"])
async def test_a_renewed_token_counts_for_what_is_read_next(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired() as made:
        bookies = Bookies(MemoryTree("c").session())
        address, over_grpc = f"tcp:127.0.0.1:{made.house.port}", f"127.0.0.1:{made.grpc.port}"
        await bookies.register(Registration("a", 1, address, grpc=over_grpc))
        now_ms = CLOCK.wall_ms()
        shown = ShownToken(token(READ, now_ms + 60_000), clock=CLOCK)
        security = Security(read_token=shown)
        transport = make_transport(bookies, security, wire, CLOCK, random.Random(1))
        assert (await (await transport.connect("a")).read(read(SHOP))).status is Status.OK
        shown.renew(token(READ, now_ms + 120_000))
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: now_ms + 60_000)
        assert (await (await transport.connect("a")).read(read(SHOP))).status is Status.OK
        await transport.close()


def test_a_bookie_that_does_not_know_whose_a_ledger_is_hands_nothing_out() -> None:
    async def run() -> None:
        model, door = ModelBookie("a"), ReaderDoor(lambda: (KEY,), CLOCK)
        await append(model, runs_of(SHOP, 0, [[b"milk"]]))
        seen = ReadableBookie(model, door.reader(token()))
        assert (await seen.read(read(SHOP))).status is Status.UNAUTHORIZED

    asyncio.run(run())


async def test_every_kind_of_frame_but_those_for_reading_is_refused() -> None:
    async with wired() as made:
        connection = await ClientConnection.dial(
            f"tcp:127.0.0.1:{made.house.port}",
            {},
            CLOCK,
            FramedSettings(),
            reader(token()).at_bookies(),
        )
        asked = [kind for kind in Kind if kind >= Kind.CONNECT]
        answered = await connection.call(Kind.CONNECT, msgspec.msgpack.encode(Connect("a")))
        assert answered.kind == Kind.CONNECTED
        refused = []
        for kind in asked:
            if kind in server_connection.READING:
                continue
            with pytest.raises((AccessRefused, BookieUnavailable)) as refusal:
                await connection.call(kind, b"", target=1)
            if "read token is for reading" in str(refusal.value):
                refused.append(kind)
        assert set(refused) == set(asked) - server_connection.READING
        connection.close()


async def test_no_kind_of_frame_is_heard_before_a_proof() -> None:
    async with wired() as made:
        for kind in Kind:
            if kind in (Kind.HELLO,):
                continue
            end = await made.house.raw()
            end.send(kind, b"", 1)
            frame = await end.frame()
            assert frame is not None and frame.kind == Kind.REFUSED
            assert decode_error(frame.head)[0] == ErrorCode.FRAME_INVALID
        assert not made.shelf.calls


async def test_every_method_over_grpc_wants_a_proof() -> None:
    expired = sign(Claims(READ, "ann", 1, (("tablespace", "shop"),)), KEY)
    async with wired() as made, aio.insecure_channel(f"127.0.0.1:{made.grpc.port}") as channel:
        for name in METHODS:
            for shown in ("", "Bearer x", f"Bearer {expired}", "Basic eDp5"):
                call = channel.stream_stream(f"/herdbook.v1.Bookie/{name}", None, None)
                metadata = [("authorization", shown)] if shown else []
                # Nothing is sent: to send to what has been refused is an error of its own.
                with pytest.raises(aio.AioRpcError) as refusal:
                    await call(None, metadata=metadata, timeout=5).read()
                assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not made.shelf.calls


# Readers who ask for much


async def raw_reader(made: Wired, *frames: tuple[Kind, Any], user: str = "ann") -> RawEnd:
    """A connection with a user's read token that asks, and takes no answer."""
    end = await made.house.raw()
    end.hello(token=token(user=user))
    end.send(Kind.CONNECT, encode(Connect("a")), 1)
    for expected in (Kind.WELCOME, Kind.CONNECTED):
        frame = await end.frame()
        assert frame is not None and frame.kind == expected
    # What the kernel takes for the client ends here.
    end.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for request, (kind, asked) in enumerate(frames, 2):
        head = encode(asked)
        end.writer.write(frame_header(kind, 1, request, head) + head)
    return end


def reaches(found: Callable[[], int], least: int) -> Callable[[], bool]:
    """What says whether so much is found."""
    return lambda: found() >= least


LARGE: Final = (Kind.READ, Read(SHOP, 1, 1, 1))


async def large_entry(made: Wired) -> None:
    body = b"x" * (ENTRY_BYTES_MAX - 1_000)
    await append(made.shelf, runs_of(SHOP, 1, [[body]]))


async def test_replies_that_one_reader_does_not_take_keep_nobody_elses_reads_out() -> None:
    settings = FramedSettings(reads_bytes_max=64 * MIB, urgent_bytes=16 * MIB)
    async with wired(settings) as made:
        await large_entry(made)
        server = made.house.server
        for _ in range(12):
            await raw_reader(made, *[LARGE] * 6)
        await until(lambda: server.reads.taken_bytes >= 7 * MIB)
        for security in (NODE, reader(token(user="eve"))):
            bookie = await made.framed(security)
            async with asyncio.timeout(30):
                for _ in range(3):
                    assert (await bookie.read(read(SHOP))).status is Status.OK
            assert server.reads.taken_bytes <= 12 * MIB, "ann has a quarter"


async def test_replies_that_four_readers_do_not_take_leave_room_for_a_fifth_and_for_nodes() -> None:
    settings = FramedSettings(reads_bytes_max=112 * MIB, urgent_bytes=16 * MIB)
    async with wired(settings) as made:
        await large_entry(made)
        server = made.house.server
        held_bytes = 0
        for number in range(4):
            for _ in range(12):
                await raw_reader(made, *[LARGE] * 6, user=f"user-{number}")
            # Of each, two replies stay at least.
            held_bytes += 7 * MIB
            await until(reaches(lambda: server.reads.taken_bytes, held_bytes))
        for security in (NODE, reader(token(user="eve"))):
            bookie = await made.framed(security)
            async with asyncio.timeout(20):
                assert (await bookie.read(read(SHOP))).status is Status.OK


async def test_a_reader_who_takes_nothing_of_a_reply_is_hung_up_on() -> None:
    settings = FramedSettings(request_timeout_ms=200)
    async with wired(settings) as made:
        await large_entry(made)
        server = made.house.server
        await raw_reader(made, LARGE, LARGE)
        await until(lambda: server.reads.taken_bytes > 0)
        await until(lambda: not server.connections)
        assert server.reads.taken_bytes == 0


async def test_calls_of_one_reader_over_many_connections_leave_room_for_others() -> None:
    settings = FramedSettings(calls_max=17)
    async with wired(settings) as made:
        server = made.house.server
        polls = [(Kind.WAIT_LAC, WaitLac(SHOP, 9, 60_000))] * 8
        ends = [await raw_reader(made, *polls) for _ in range(3)]
        await until(lambda: server.readers.held == 16)
        last = ends[-1]
        last.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(8):
            frame = await last.frame()
            assert frame is not None and frame.kind == Kind.ERROR
            assert decode_error(frame.head)[0] == ErrorCode.OVERLOADED
        bookie = await made.framed(reader(token(user="eve")))
        assert (await bookie.wait_lac(SHOP, -2, 0)).status is Status.OK
        for end in ends:
            end.writer.transport.abort()
        await until(lambda: server.readers.held == 0)


async def test_calls_of_four_readers_leave_room_for_a_fifth() -> None:
    settings = FramedSettings(calls_max=16)
    async with wired(settings) as made:
        server = made.house.server
        polls = [(Kind.WAIT_LAC, WaitLac(SHOP, 9, 60_000))] * 16
        ends = []
        for number, name in enumerate(("bob", "cid", "dan", "eva"), 1):
            ends.append(await raw_reader(made, *polls, user=name))
            await until(reaches(lambda: server.readers.held, 6 * number))
        bookie = await made.framed(reader(token(user="eve")))
        assert (await bookie.wait_lac(SHOP, -2, 0)).status is Status.OK
        for end in ends:
            end.writer.transport.abort()


async def test_reads_of_four_readers_over_grpc_leave_room_for_a_fifth_and_for_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, go_on, read_now = [], asyncio.Event(), Shelf.read

    async def slowly(shelf: Shelf, request: ReadRequest) -> ReadReply:
        running.append(request)
        if request.last < 9:
            return await read_now(shelf, request)
        await go_on.wait()
        return await read_now(shelf, request)

    monkeypatch.setattr(Shelf, "read", slowly)
    many = ReadRequest(SHOP, 0, 9, 100, None)
    async with wired() as made:
        asked = []
        for number, name in enumerate(("bob", "cid", "dan", "eva"), 1):
            bookies = [await made.over_grpc(reader(token(user=name))) for _ in range(8)]
            asked += [asyncio.ensure_future(bookie.read(many)) for bookie in bookies]
            await until(reaches(lambda: len(running), 2 * number))
            for bookie in bookies:
                # It is answered only after the read had its chance to begin.
                await bookie.info()
        for security in (NODE, reader(token(user="eve"))):
            bookie = await made.over_grpc(security)
            async with asyncio.timeout(20):
                assert (await bookie.read(read(SHOP))).status is Status.OK
        go_on.set()
        await asyncio.gather(*asked)


async def test_reads_of_one_reader_over_grpc_count_as_those_of_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, go_on, read_now = [], asyncio.Event(), Shelf.read

    async def slowly(shelf: Shelf, request: ReadRequest) -> ReadReply:
        running.append(request)
        await go_on.wait()
        return await read_now(shelf, request)

    monkeypatch.setattr(Shelf, "read", slowly)
    settings = GrpcSettings()
    most = part_of(settings.read_bytes_max - settings.urgent_bytes, 0) // ENTRY_BYTES_MAX
    async with wired() as made:
        bookies = [await made.over_grpc(reader(token())) for _ in range(3 * most)]
        asked = [asyncio.ensure_future(bookie.read(read(SHOP))) for bookie in bookies]
        await until(lambda: len(running) == most)
        for bookie in bookies:
            # It is answered only after the read had its chance to begin.
            await bookie.info()
        assert len(running) == most
        node = await made.over_grpc(NODE)
        asked.append(asyncio.ensure_future(node.read(read(SHOP))))
        await until(lambda: len(running) > most)
        go_on.set()
        assert {(await each).status for each in asked} == {Status.OK}
