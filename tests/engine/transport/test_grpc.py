"""gRPC connections that break, stall, crowd or lie."""

import asyncio

import pytest

from engine.errors import BookieUnavailable, FormatTooNew
from engine.limits import ENTRY_BYTES_MAX, MIB, RUN_ENTRIES_MAX
from engine.metadata.bookies import Registration
from engine.ports.clock import SystemClock
from engine.transport.contract import ReadRequest, Status
from engine.transport.grpc_client import GrpcBookie, grpc_dial
from engine.transport.grpc_server import GrpcServer
from engine.transport.grpc_settings import MESSAGE_BYTES_MAX, GrpcSettings
from engine.transport.security import NO_SECURITY
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.grpc_wiring import GrpcTransport, until, wired
from tests.engine.transport.model_bookie import ModelBookie


async def test_a_lost_server_answers_all_that_is_pending_once_and_dialling_again_serves() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = [append(bookie, runs_of(7, entry, [[b"moo"]])) for entry in range(50)]
        fence = asyncio.ensure_future(bookie.fence(8, KEY))
        poll = asyncio.ensure_future(bookie.wait_lac(9, 0, 60_000))
        await until(lambda: len(made.bookie.held) == 50 and made.server.calls.long_polls == 1)
        await made.server.close(0)
        async with asyncio.timeout(20):
            replies = [await answer for answer in pending]
        assert {reply.status for reply in replies} == {Status.UNAVAILABLE}
        assert [reply.first for reply in replies] == list(range(50))
        assert (await poll).status is Status.UNAVAILABLE
        assert (await fence).status in {Status.OK, Status.UNAVAILABLE}
        assert bookie.gone
        assert (await append(bookie, runs_of(7, 50, [[b"moo"]]))).status is Status.UNAVAILABLE
        assert (await bookie.read(ReadRequest(7, 0, 0, 1))).status is Status.UNAVAILABLE
        assert (await bookie.fence(7, KEY)).status is Status.UNAVAILABLE
        with pytest.raises(BookieUnavailable):
            await bookie.info()
        again = await GrpcServer.start(made.bookies, listen=made.address)
        made.bookie.holding = False
        made.bookie.release()
        new = await made.connect()
        assert new is not bookie
        assert (await append(new, runs_of(7, 50, [[b"moo"]]))).status is Status.OK
        await made.transport.close()
        await again.close(0)


async def test_bookies_behind_one_address_share_a_connection_that_ends_with_the_last() -> None:
    async with wired() as made:
        made.bookies["b"] = ModelBookie("b")
        dial = grpc_dial(NO_SECURITY, SystemClock())
        first, second = await asyncio.gather(
            *(dial(Registration(name, 1, grpc=made.address)) for name in ("a", "b"))
        )
        assert isinstance(first, GrpcBookie) and isinstance(second, GrpcBookie)
        connection = first.connection
        assert connection is second.connection
        made.bookie.holding = True
        pending = append(first, runs_of(7, 0, [[b"moo"]]))
        await first.close()
        assert (await pending).status is Status.UNAVAILABLE
        assert not connection.over
        assert (await append(second, runs_of(7, 0, [[b"moo"]]))).status is Status.OK
        await second.close()
        assert connection.over


async def test_a_stopped_bookie_is_unavailable_and_serves_again_after_its_start() -> None:
    async with wired() as made:
        bookie = await made.connect()
        del made.bookies["a"]
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.UNAVAILABLE
        assert (await bookie.fence(7, KEY)).status is Status.UNAVAILABLE
        assert (await bookie.wait_lac(7, 0, 60_000)).status is Status.UNAVAILABLE
        assert bookie.gone
        with pytest.raises(BookieUnavailable, match="does not run"):
            await made.connect()
        made.bookies["a"] = ModelBookie("a", boot=2)
        again = await made.connect()
        assert (await append(again, runs_of(7, 0, [[b"moo"]]))).boot == 2


async def test_an_address_where_nobody_listens_is_unavailable() -> None:
    async with wired() as made:
        address = made.address
    transport = GrpcTransport(address)
    with pytest.raises(BookieUnavailable, match=address):
        await transport.connect("a")
    with pytest.raises(BookieUnavailable, match="does not serve gRPC"):
        await grpc_dial(NO_SECURITY, SystemClock())(Registration("a", 1))


async def test_a_port_that_is_taken_is_refused_and_never_shared() -> None:
    async with wired() as made:
        with pytest.raises(OSError, match="cannot listen"):
            await GrpcServer.start({}, listen=made.address)
        assert (await (await made.connect()).info()).bookie_id == "a"


async def test_orders_of_one_turn_leave_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wired() as made:
        bookie = await made.connect()
        written: list[int] = []
        stream = bookie.connection._stream
        write = stream.write

        async def counted(data: bytes) -> None:
            written.append(len(data))
            await write(data)

        monkeypatch.setattr(stream, "write", counted)
        answers = [append(bookie, runs_of(ledger, 0, [[b"moo"]])) for ledger in range(1, 101)]
        bookie.confirm(1, 0)
        assert {(await answer).status for answer in answers} == {Status.OK}
        assert len(written) == 1


async def test_many_tiny_entries_cross_in_several_orders_with_one_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.transport.grpc_client.ORDER_BYTES_MAX", 10_000)
    async with wired() as made:
        bookie = await made.connect()
        runs = runs_of(7, 0, [[b""] * RUN_ENTRIES_MAX] * 20)
        reply = await append(bookie, runs)
        assert (reply.status, reply.first, reply.last) == (Status.OK, 0, runs[-1].last)
        assert made.bookie.calls[:2] == ["append 0-1023", "append 1024-2047"]
        answer = await bookie.read(ReadRequest(7, 0, runs[-1].last, MIB))
        assert answer.runs[0].first == 0 and answer.runs[-1].last == runs[-1].last


async def test_a_read_of_more_than_a_message_comes_in_several_and_is_one_reply() -> None:
    async with wired(GrpcSettings(read_chunk_bytes=1_000)) as made:
        bookie = await made.connect()
        bodies = [[bytes([number]) * 600] for number in range(10)]
        await append(bookie, runs_of(7, 0, bodies))
        made.bookie.calls.clear()
        answer = await bookie.read(ReadRequest(7, 0, 20, MIB))
        assert [run.body for run in answer.runs] == [body for [body] in bodies]
        assert answer.missing == (10, 20) and answer.status is Status.OK
        assert len(made.bookie.calls) > 3
        short = await bookie.read(ReadRequest(7, 0, 20, 1_500))
        assert 2 <= len(short.runs) < 10 and short.missing is None
        big = b"x" * ENTRY_BYTES_MAX
        await append(bookie, runs_of(8, 0, [[big], [big], [big]]))
        whole = await bookie.read(ReadRequest(8, 0, 2, 64 * MIB))
        assert [len(run.body) for run in whole.runs] == [ENTRY_BYTES_MAX] * 3


async def test_a_read_meets_what_was_sent_before_it() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = append(bookie, runs_of(7, 0, [[b"moo"]]))
        answer = await bookie.read(ReadRequest(7, 0, 0, MIB))
        assert [run.body for run in answer.runs] == [b"moo"]
        assert made.bookie.calls == ["append 0-0", "read 0-0"] and not pending.done()
        made.bookie.release()
        assert (await pending).status is Status.OK


async def test_a_read_waits_for_an_append_that_the_server_has_not_taken_yet() -> None:
    async with wired(GrpcSettings(stream_bytes_max=MIB)) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        big = append(bookie, runs_of(7, 0, [[b"x" * 2 * MIB]]))
        await until(lambda: bool(made.bookie.held))
        small = append(bookie, runs_of(8, 0, [[b"moo"]]))
        read = asyncio.ensure_future(bookie.read(ReadRequest(8, 0, 0, MIB)))
        for _ in range(20):
            assert (await bookie.info()).bookie_id == "a"
        assert not read.done() and made.bookie.calls == ["append 0-0"]
        made.bookie.release()
        assert [run.body for run in (await read).runs] == [b"moo"]
        made.bookie.release()
        assert {(await answer).status for answer in (big, small)} == {Status.OK}


async def test_an_append_after_a_fencing_read_is_fenced() -> None:
    async with wired() as made:
        bookie = await made.connect()
        await append(bookie, runs_of(7, 0, [[b"moo"]]))
        read = asyncio.ensure_future(bookie.read(ReadRequest(7, 0, 9, MIB, fence_key=KEY)))
        await asyncio.sleep(0)
        late = await append(bookie, runs_of(7, 1, [[b"moo"]]))
        assert late.status is Status.FENCED
        assert (await read).missing == (1, 9)


async def test_a_server_reads_no_more_of_a_stream_than_it_may_hold_unanswered() -> None:
    async with wired(GrpcSettings(stream_bytes_max=8 * MIB)) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        big = [b"x" * ENTRY_BYTES_MAX]
        pending = [append(bookie, runs_of(7, entry, [big])) for entry in range(8)]
        await until(lambda: made.server.calls.held_bytes > 8 * MIB)
        # Another client is served all the while.
        other = GrpcTransport(made.address)
        made.bookies["b"] = ModelBookie("b")
        for entry in range(50):
            quick = await append(await other.connect("b"), runs_of(9, entry, [[b"moo"]]))
            assert quick.status is Status.OK
        assert 2 <= len(made.bookie.held) <= 3
        while not all(answer.done() for answer in pending):
            made.bookie.release()
            await asyncio.sleep(0)
        assert {answer.result().status for answer in pending} == {Status.OK}
        await until(lambda: made.server.calls.held_bytes == 0)
        await other.close()


async def test_all_streams_together_hold_no_more_than_the_server_may() -> None:
    settings = GrpcSettings(stream_bytes_max=8 * MIB, append_bytes_max=12 * MIB)
    async with wired(settings) as made:
        made.bookie.holding = True
        transports = [GrpcTransport(made.address) for _ in range(4)]
        big = [b"x" * ENTRY_BYTES_MAX]
        pending = [
            append(await transport.connect("a"), runs_of(ledger, entry, [big]))
            for entry in range(3)
            for ledger, transport in enumerate(transports)
        ]
        await until(lambda: made.server.calls.held_bytes > 12 * MIB)
        for transport in transports:
            assert (await (await transport.connect("a")).info()).bookie_id == "a"
        # Each stream may have one message in its hands when the bound is reached.
        assert made.server.calls.held_bytes <= 12 * MIB + 4 * MESSAGE_BYTES_MAX
        assert 4 <= len(made.bookie.held) <= 7
        while not all(answer.done() for answer in pending):
            made.bookie.release()
            await asyncio.sleep(0)
        assert {answer.result().status for answer in pending} == {Status.OK}
        for transport in transports:
            await transport.close()


async def test_a_full_sending_queue_answers_overloaded_later() -> None:
    settings = GrpcSettings(send_bytes_max=MESSAGE_BYTES_MAX, stream_bytes_max=4 * MIB)
    async with wired(settings) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        big = [b"x" * ENTRY_BYTES_MAX]
        pending = [append(bookie, runs_of(7, entry, [big])) for entry in range(12)]
        assert not any(answer.done() for answer in pending)
        await asyncio.sleep(0)
        refused = [answer.result().status for answer in pending if answer.done()]
        assert len(refused) >= 6 and set(refused) == {Status.OVERLOADED}


async def test_an_answer_that_is_late_counts_as_none() -> None:
    async with wired(GrpcSettings(request_timeout_ms=80)) as made:
        bookie = await made.connect()
        made.bookie.holding = True
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.UNAVAILABLE
        made.bookie.release()


async def test_a_reply_of_another_bookie_is_not_passed_on() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.bookie_id = "impostor"
        reply = await append(bookie, runs_of(7, 0, [[b"moo"]]))
        assert (reply.status, reply.bookie_id) == (Status.UNAVAILABLE, "a")
        assert (await bookie.wait_lac(7, -2, 0)).status is Status.UNAVAILABLE
        assert (await bookie.read(ReadRequest(7, 0, 0, 9))).status is Status.UNAVAILABLE


async def test_a_server_that_closes_answers_what_it_took_and_ends_long_polls() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = [append(bookie, runs_of(7, entry, [[b"moo"]])) for entry in range(20)]
        poll = asyncio.ensure_future(bookie.wait_lac(7, 5, 60_000))
        # A call that comes later is left alone until the grace time is over.
        await until(lambda: len(made.bookie.held) == 20 and made.server.calls.long_polls == 1)
        closing = asyncio.ensure_future(made.server.close(60_000))
        assert (await poll).status is Status.UNAVAILABLE
        assert not closing.done()
        made.bookie.release()
        assert {(await answer).status for answer in pending} == {Status.OK}
        await closing


async def test_a_client_that_vanishes_leaves_no_bytes_behind() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = [append(bookie, runs_of(7, entry, [[b"moo"] * 9])) for entry in range(0, 90, 9)]
        fences = [asyncio.ensure_future(bookie.fence(ledger, KEY)) for ledger in range(8, 30)]
        await until(lambda: len(made.bookie.held) == 10)
        # Replies that are on their way meet a stream that is over.
        made.bookie.held, late = made.bookie.held[:5], made.bookie.held[5:]
        made.bookie.release()
        await bookie.close()
        assert {(await answer).status for answer in pending} <= {Status.OK, Status.UNAVAILABLE}
        assert len([await fence for fence in fences]) == 22
        for send in late:
            send()
        await until(lambda: made.server.calls.held_bytes == 0)
        made.bookie.holding = False
        assert (await append(await made.connect(), runs_of(50, 0, [[b"moo"]]))).status is Status.OK


async def test_a_dial_that_nobody_waits_for_any_more_is_given_up() -> None:
    async with wired() as made:
        dial = grpc_dial(NO_SECURITY, SystemClock())
        registration = Registration("a", 1, grpc=made.address)
        dials = [asyncio.ensure_future(dial(registration)) for _ in range(3)]
        await asyncio.sleep(0)
        for one in dials:
            one.cancel()
        ended = await asyncio.gather(*dials, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        bookie = await dial(registration)
        assert (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK
        assert isinstance(bookie, GrpcBookie)
        await bookie.close()
        left = [task for task in asyncio.all_tasks() if "GrpcConnection" in repr(task)]
        assert left == []


async def test_closing_a_connection_answers_what_is_pending() -> None:
    async with wired() as made:
        bookie = await made.connect()
        made.bookie.holding = True
        pending = append(bookie, runs_of(7, 0, [[b"moo"]]))
        await until(lambda: bool(made.bookie.held))
        await made.transport.close()
        assert (await pending).status is Status.UNAVAILABLE
        await made.transport.close()


async def test_a_client_of_a_newer_format_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with wired() as made:
        monkeypatch.setattr("engine.transport.grpc_connection.FORMAT_MAJOR", 2)
        with pytest.raises(FormatTooNew, match="upgrade"):
            await made.connect()
