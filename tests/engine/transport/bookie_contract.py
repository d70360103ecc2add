"""What a bookie does when it is reached through a transport, whatever the transport is.

A subclass says in `run_with_bookies` how a scenario reaches bookies.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.errors import BookieUnavailable
from engine.limits import ENTRY_BYTES_MAX, RUN_ENTRIES_MAX
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    Bookie,
    LedgerFacts,
    ReadRequest,
    Status,
    Transport,
)

KEY = hashlib.sha256(b"moo").digest()
OTHER_KEY = hashlib.sha256(b"baa").digest()

Scenario = Callable[[Transport], Awaitable[None]]


def facts_of(ledger_id: int) -> LedgerFacts:
    """Facts of a ledger on one bookie."""
    key_hash = hashlib.sha256(KEY).digest()
    custom = {"herd": b"alm", "empty": b""}
    return LedgerFacts(
        ledger_id, 1, 1, 1, 256, key_hash, 1_700_000_000_000, custom, 0, ("bookie-a",)
    )


def runs_of(ledger_id: int, first: int, bodies: list[list[bytes]], lac: int = -1) -> list[Run]:
    """Consecutive runs with the given bodies."""
    runs: list[Run] = []
    length = 1_000_000
    for group in bodies:
        runs.append(Run.pack(ledger_id, first, group, lac=lac, length_before=length))
        first, length = runs[-1].last + 1, runs[-1].length
    return runs


def append(
    bookie: Bookie, runs: Sequence[Run], *, key: bytes = KEY, recovery: bool = False
) -> "asyncio.Future[AppendReply]":
    """Append, with facts at the ledger's start; the future gets the one reply."""
    answered: asyncio.Future[AppendReply] = asyncio.get_running_loop().create_future()
    facts = facts_of(runs[0].ledger_id) if runs[0].first == 0 else None
    bookie.append(runs, answered.set_result, key=key, facts=facts, recovery=recovery)
    return answered


class BookieContract:
    """Run over every transport, and over every bookie."""

    first = "bookie-a"
    second = "bookie-b"

    def run_with_bookies(self, scenario: Scenario) -> None:
        """Run `scenario(transport)`; the bookies `first` and `second` run and are empty."""
        raise NotImplementedError

    def test_what_was_appended_is_read_back_byte_for_byte(self) -> None:
        bodies = [
            [b"moo", b"", b"\x00\xff" * 500],
            [bytes([number]) * number for number in range(RUN_ENTRIES_MAX)],
            [b"x" * ENTRY_BYTES_MAX],
        ]

        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            runs = runs_of(7, 0, bodies)
            reply = await append(bookie, runs)
            last = runs[-1].last
            assert (reply.status, reply.ledger_id) == (Status.OK, 7)
            assert (reply.first, reply.last, reply.bookie_id) == (0, last, self.first)
            got: list[bytes] = []
            while len(got) <= last:
                answer = await bookie.read(ReadRequest(7, len(got), last, 1 << 20))
                assert answer.status is Status.OK and answer.runs
                got += [entry.body for run in answer.runs for entry in run.entries()]
                assert answer.runs[-1].length == runs_of(7, 0, bodies)[-1].length or len(got) < last
            assert got == [body for group in bodies for body in group]

        self.run_with_bookies(scenario)

    def test_appends_and_fences_of_one_ledger_keep_their_order(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            before = [append(bookie, runs_of(7, entry, [[b"moo"]])) for entry in range(300)]
            fence = asyncio.ensure_future(bookie.fence(7, KEY))
            await asyncio.sleep(0)
            after = [append(bookie, runs_of(7, entry, [[b"moo"]])) for entry in range(300, 310)]
            assert {(await answer).status for answer in before} == {Status.OK}
            assert {(await answer).status for answer in after} == {Status.FENCED}
            assert (await fence).status is Status.OK
            late = await append(bookie, runs_of(7, 300, [[b"moo"]]), recovery=True)
            assert late.status is Status.OK

        self.run_with_bookies(scenario)

    def test_a_read_with_a_fence_fences_first(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            await append(bookie, runs_of(7, 0, [[b"moo"]]))
            answer = await bookie.read(ReadRequest(7, 0, 5, 1 << 20, fence_key=KEY))
            assert [run.first for run in answer.runs] == [0]
            assert answer.missing == (1, 5) and answer.unknown is None
            assert (await append(bookie, runs_of(7, 1, [[b"moo"]]))).status is Status.FENCED

        self.run_with_bookies(scenario)

    def test_an_unknown_ledger_is_positively_unknown(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            answer = await bookie.read(ReadRequest(404, 0, 5, 1 << 20))
            assert answer.status is Status.NO_SUCH_LEDGER and not answer.runs
            assert answer.bookie_id == self.first

        self.run_with_bookies(scenario)

    def test_another_key_is_refused(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            await append(bookie, runs_of(7, 0, [[b"moo"]]))
            stranger = await append(bookie, runs_of(7, 1, [[b"baa"]]), key=OTHER_KEY)
            assert stranger.status is Status.UNAUTHORIZED
            assert (await bookie.fence(7, OTHER_KEY)).status is Status.UNAUTHORIZED

        self.run_with_bookies(scenario)

    def test_the_lac_travels_on_runs_and_alone(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            await append(bookie, runs_of(7, 0, [[b"moo"], [b"baa"]]))
            assert (await bookie.wait_lac(7, NO_ENTRY - 1, 0)).lac == NO_ENTRY
            poll = asyncio.ensure_future(bookie.wait_lac(7, NO_ENTRY, 60_000))
            await asyncio.sleep(0)
            bookie.confirm(7, 1)
            assert (await poll).lac == 1
            await append(bookie, runs_of(7, 2, [[b"moo"] * 3], lac=1))
            reply = await bookie.wait_lac(7, 0, 60_000)
            assert (reply.status, reply.lac, reply.bookie_id) == (Status.OK, 1, self.first)

        self.run_with_bookies(scenario)

    def test_a_long_poll_ends_in_time(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            await append(bookie, runs_of(7, 0, [[b"moo"]]))
            assert (await bookie.wait_lac(7, 5, 10)).lac == NO_ENTRY

        self.run_with_bookies(scenario)

    def test_two_bookies_do_not_mix(self) -> None:
        async def scenario(transport: Transport) -> None:
            first, second = (
                await transport.connect(self.first),
                await transport.connect(self.second),
            )
            await append(first, runs_of(7, 0, [[b"moo"]]))
            await append(second, runs_of(8, 0, [[b"baa"]]))
            answer = await second.read(ReadRequest(7, 0, 0, 1 << 20))
            assert (answer.status, answer.bookie_id) == (Status.NO_SUCH_LEDGER, self.second)
            information = await first.info()
            assert information.bookie_id == self.first and information.writable
            assert information.boot == (await first.wait_lac(7, -2, 0)).boot

        self.run_with_bookies(scenario)

    def test_new_facts_are_taken_without_a_reply(self) -> None:
        async def scenario(transport: Transport) -> None:
            bookie = await transport.connect(self.first)
            await append(bookie, runs_of(7, 0, [[b"moo"]]))
            bookie.record(facts_of(7), KEY)
            assert (await append(bookie, runs_of(7, 1, [[b"moo"]]))).status is Status.OK

        self.run_with_bookies(scenario)

    def test_a_bookie_that_does_not_run_is_unavailable(self) -> None:
        async def scenario(transport: Transport) -> None:
            with pytest.raises(BookieUnavailable):
                await transport.connect("bookie-z")

        self.run_with_bookies(scenario)
