"""Well-formed messages with any numbers, on both wires: the bookie stays up, whatever they say."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.run import Run
from engine.transport.contract import LedgerFacts
from engine.transport.frames import Kind, frame_header
from engine.transport.grpc_generated import bookie_pb2 as wire
from engine.transport.grpc_service import BookieCalls
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.messages import Connect, encode, encode_append, pack_runs
from tests.engine.bookie.house import KEY, House, facts_of, turns
from tests.engine.transport.tcp_wiring import tcp_house

EDGES = (-(2**63), -2, -1, 0, 1, 7, 256, 2**32, 2**62, 2**63 - 1)
SIGNED = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
SMALL = st.sampled_from((0, 1, 2, 3, 64, 65, 2**32 - 1))
MOO = Run.pack(7, 0, [b"moo"], lac=-1, length_before=0)

FACTS = st.builds(
    LedgerFacts,
    ledger_id=SIGNED | st.just(7),
    ensemble_size=SMALL,
    write_quorum=SMALL,
    ack_quorum=SMALL,
    stripe_entries=SMALL,
    key_hash=st.just(facts_of(7).key_hash) | st.binary(max_size=40),
    created_ms=SIGNED,
    custom=st.just({}),
    fragment_first=SIGNED,
    ensemble=st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
    closed_last=SIGNED,
    closed_length=SIGNED,
) | st.just(facts_of(7))
RUNS = st.builds(
    lambda ledger_id, first, lac, length: msgspec.structs.replace(
        MOO, ledger_id=ledger_id, first=first, lac=lac, length=length
    ),
    st.just(7) | SIGNED.filter(lambda number: number >= 0),
    SIGNED,
    SIGNED,
    SIGNED,
)


def array(*fields: Any) -> st.SearchStrategy[bytes]:
    """A head that is a MessagePack array."""
    drawn = [field if isinstance(field, st.SearchStrategy) else st.just(field) for field in fields]
    return st.tuples(*drawn).map(encode)


def packed_append(run: Run, facts: LedgerFacts | None, recovery: bool) -> tuple[bytes, bytes]:
    head, body = encode_append([run], KEY, facts, recovery)
    return head, b"".join(body)


def alone(kind: Kind, heads: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(kind), heads, st.just(b""))


FRAMES = st.one_of(
    alone(Kind.FENCE, array(SIGNED, KEY)),
    alone(Kind.WAIT_LAC, array(SIGNED, SIGNED, SIGNED)),
    alone(Kind.READ, array(SIGNED, SIGNED, SIGNED, SIGNED, st.none() | st.just(KEY))),
    alone(Kind.RECORD, array(FACTS, KEY)),
    alone(
        Kind.CONFIRM,
        st.tuples(SIGNED, SIGNED).map(
            lambda said: b"".join(number.to_bytes(8, "big", signed=True) for number in said)
        ),
    ),
    st.builds(packed_append, RUNS, st.none() | FACTS, st.booleans()).map(
        lambda packed: (Kind.APPEND, *packed)
    ),
)


async def still_up(house: House) -> bool:
    """Whether it serves, and does so again after a restart."""
    await turns(100)
    failures = [house.service.failure]
    for first in (0, 2**62):
        await house.read(first, 2**63 - 1)
    await house.indexed()
    failures.append(house.service.failure)
    await house.service.close()
    await house.start()
    await house.read(0, 2**63 - 1, fence_key=KEY)
    failures.append(house.service.failure)
    await house.service.close()
    return failures == [None, None, None]


@given(st.lists(FRAMES, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_frame_stops_a_bookie(frames: list[tuple[Kind, bytes, bytes]]) -> None:
    async def run() -> bool:
        house = House()
        service = await house.start()
        async with tcp_house(bookies=[service]) as wired:
            for kind, head, body in frames:
                end = await wired.raw()
                end.hello()
                end.send(Kind.CONNECT, encode(Connect(service.bookie_id)), request=1)
                end.writer.write(frame_header(kind, 1, 2, head, len(body)) + head + body)
                end.writer.write(frame_header(Kind.INFO, 1, 3, b""))
                while (said := await end.frame()) is not None and said.request != 3:
                    assert said.kind != Kind.INFO_REPLY
        return await still_up(house)

    assert asyncio.run(run())


class Aborted(Exception):
    """What gRPC raises out of a call that is ended."""


class Context:
    """A call as its server sees it."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.codes: list[Any] = []

    async def read(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    async def write(self, data: bytes) -> None:
        assert data

    async def abort(self, code: Any, details: str) -> None:
        self.codes.append(code)
        raise Aborted(details)

    def peer(self) -> str:
        return "somebody"

    def time_remaining(self) -> None:
        return None


def facts_on_wire(facts: LedgerFacts) -> wire.LedgerFacts:
    return wire.LedgerFacts(
        ledger_id=facts.ledger_id,
        ensemble_size=facts.ensemble_size,
        write_quorum=facts.write_quorum,
        ack_quorum=facts.ack_quorum,
        stripe_entries=facts.stripe_entries,
        key_hash=facts.key_hash,
        created_ms=facts.created_ms,
        fragment_first=facts.fragment_first,
        ensemble=facts.ensemble,
        closed_last=facts.closed_last,
        closed_length=facts.closed_length,
    )


def append_on_wire(run: Run, facts: LedgerFacts | None, recovery: bool) -> wire.Order:
    order = wire.Order(request=1)
    order.append.ledger_id, order.append.key = run.ledger_id, KEY
    order.append.run_count, order.append.runs = 1, pack_runs([run])
    order.append.recovery = recovery
    if facts is not None:
        order.append.facts.CopyFrom(facts_on_wire(facts))
    return order


ORDERS = st.one_of(
    st.builds(append_on_wire, RUNS, st.none() | FACTS, st.booleans()),
    st.builds(
        lambda ledger_id, lac: wire.Order(confirm=wire.Confirm(ledger_id=ledger_id, lac=lac)),
        SIGNED,
        SIGNED,
    ),
    FACTS.map(lambda facts: wire.Order(record=wire.Record(facts=facts_on_wire(facts), key=KEY))),
    SIGNED.map(
        lambda number: wire.Order(request=1, fence=wire.FenceOrder(ledger_id=number, key=KEY))
    ),
)
CALLS = st.one_of(
    SIGNED.map(lambda number: ("fence", wire.FenceRequest(ledger_id=number, key=KEY))),
    st.builds(
        lambda number, above: ("wait_lac", wire.WaitLacRequest(ledger_id=number, above=above)),
        SIGNED,
        SIGNED,
    ),
    st.builds(
        lambda number, first, last, key: (
            "read",
            wire.ReadRequest(ledger_id=number, first=first, last=last, fence_key=key),
        ),
        SIGNED,
        SIGNED,
        SIGNED,
        st.none() | st.just(KEY),
    ),
)


@given(st.lists(ORDERS, max_size=8), st.lists(CALLS, max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_grpc_message_stops_a_bookie(
    orders: list[wire.Order], asked: list[tuple[str, Any]]
) -> None:
    async def run() -> bool:
        house = House()
        service = await house.start()
        calls = BookieCalls({service.bookie_id: service}, GrpcSettings())
        begun: list[Awaitable[Any]] = []
        for order in orders:
            order.bookie_id = service.bookie_id
            hello = wire.AppendRequest(hello=wire.Hello(format_major=1), orders=[order])
            begun.append(calls.append(None, Context(hello.SerializeToString())))
        for name, message in asked:
            message.bookie_id = service.bookie_id
            call: Callable[[bytes, Any], Awaitable[Any]] = getattr(calls, name)
            begun.append(call(message.SerializeToString(), Context()))
        ended = await asyncio.gather(*begun, return_exceptions=True)
        assert {type(each) for each in ended} <= {type(None), bytes, Aborted}
        return await still_up(house)

    assert asyncio.run(run())
