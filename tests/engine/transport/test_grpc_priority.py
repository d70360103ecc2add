"""Fences and recoveries over gRPC while a server is full of other people's appends and reads."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from engine.limits import ENTRY_BYTES_MAX, MIB
from engine.transport.contract import ReadRequest, Status
from engine.transport.grpc_generated import bookie_pb2 as wire
from engine.transport.grpc_settings import GrpcSettings
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.grpc_wiring import GrpcTransport, until, wired
from tests.engine.transport.test_grpc_limits import stranger
from tests.engine.transport.test_hostile_reads import FLOOD, SlowBookie

BIG = [b"x" * ENTRY_BYTES_MAX]


async def test_recoveries_and_fences_pass_a_server_that_is_full_of_appends() -> None:
    settings = GrpcSettings(stream_bytes_max=8 * MIB, append_bytes_max=16 * MIB)
    async with wired(settings) as made:
        made.bookie.holding = True

        def recovered(count: int) -> bool:
            return sum("recovery" in call for call in made.bookie.calls) == count

        writers = [GrpcTransport(made.address) for _ in range(6)]
        pending = [
            append(await writer.connect("a"), runs_of(ledger, entry, [BIG]))
            for entry in range(4)
            for ledger, writer in enumerate(writers)
        ]
        recoverer, late = GrpcTransport(made.address), GrpcTransport(made.address)
        calls = made.server.calls
        await until(lambda: calls.held_bytes > 6 * ENTRY_BYTES_MAX)
        bookie = await recoverer.connect("a")
        for number in range(3):
            pending.append(append(bookie, runs_of(90 + number, 0, [[b"moo"]]), recovery=True))
            await until(partial(recovered, number + 1))
        assert (await bookie.fence(99, KEY)).status is Status.OK
        other = await late.connect("a")
        normal = [append(other, runs_of(80 + number, 0, [[b"moo"]])) for number in range(2)]
        assert (await bookie.fence(98, KEY)).status is Status.OK
        made.bookie.holding = False
        while not all(answer.done() for answer in [*pending, *normal]):
            made.bookie.release()
            await asyncio.sleep(0)
        assert {answer.result().status for answer in [*pending, *normal]} == {Status.OK}
        await until(lambda: calls.held_bytes == 0)
        for transport in (*writers, recoverer, late):
            await transport.close()


async def test_a_recovery_reads_from_a_server_that_is_full_of_reads() -> None:
    settings = GrpcSettings(
        connection_read_bytes_max=16 * MIB, read_bytes_max=48 * MIB, urgent_bytes=16 * MIB
    )
    async with wired(settings) as made:
        slow = SlowBookie("a")
        made.bookies["a"] = slow
        asked = wire.ReadRequest(bookie_id="a", ledger_id=7, first=0, last=0, bytes_max=1)
        async with AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(stranger(made.address)) for _ in range(3)]
            calls = [
                channel.unary_stream("/herdbook.v1.Bookie/Read", None, None)(
                    asked.SerializeToString()
                )
                for channel in strangers
                for _ in range(6)
            ]
            await until(lambda: slow.running == 8)
            # Answered only after all reads had their chance to begin.
            await (await made.connect()).info()
            assert slow.running == 8 == 32 * MIB // ENTRY_BYTES_MAX
            reply = await (await made.connect()).read(ReadRequest(FLOOD, 0, 0, 1, KEY))
            assert reply.status is Status.NO_SUCH_LEDGER
            slow.go_on()
            for call in calls:
                await call.read()
        await until(lambda: made.server.calls.held_bytes == 0)
