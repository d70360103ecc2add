"""Batches that take several commands: all of them are answered, or nobody is told a lie."""

import asyncio
from collections.abc import Callable

import pytest

from broker.batching import encode_specs, parts_of
from broker.commands import Spec
from broker.errors import BrokerError, NotLeader, OutcomeUnknown, Overloaded, TooLarge
from broker.leading import proposing
from broker.leading.proposing import Answers, Proposing
from broker.task import Status
from tests.broker.service.yard import opened

_Gather = Callable[[Proposing, list[bytes]], "asyncio.Future[Answers]"]


def _failing(number: int, error: BrokerError) -> _Gather:
    """As the real one, but that part fails, as when its term ends."""
    gather = Proposing._gather
    asked = 0

    def instead(self: Proposing, specs: list[bytes]) -> "asyncio.Future[Answers]":
        nonlocal asked
        asked += 1
        if asked != number:
            return gather(self, specs)
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future

    return instead


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_when_some_parts_were_taken_the_outcome_is_unknown(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with opened() as broker:
        monkeypatch.setattr(Proposing, "_gather", _failing(number, NotLeader("it is over")))
        with pytest.raises(OutcomeUnknown, match="2,000 of 3,000"):
            await broker.submit([Spec("a")] * 3_000)
        assert (await broker.counts())[Status.WAITING] == 2_000


async def test_when_no_part_was_taken_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as broker:
        broker.term.proposing.end(NotLeader("it is over"))
        with pytest.raises(NotLeader):
            await broker.submit([Spec("a")] * 3_000)
        assert (await broker.counts())[Status.WAITING] == 0


async def test_there_is_room_for_all_parts_or_none_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as broker:
        parts = parts_of(encode_specs([Spec("a", payload=b"x" * 100)] * 3_000))
        size_bytes = sum(sum(map(len, part)) for part in parts)
        first = asyncio.ensure_future(broker.submit([Spec("a")]))
        await asyncio.sleep(0)
        monkeypatch.setattr(proposing, "GATHERED_BYTES_MAX", size_bytes)
        with pytest.raises(Overloaded):
            await broker.term.proposing.submit_parts(parts)
        await first
        assert len(await broker.term.proposing.submit_parts(parts)) == 3_000
        monkeypatch.setattr(proposing, "GATHERED_BYTES_MAX", size_bytes - 1)
        with pytest.raises(TooLarge):
            await broker.term.proposing.submit_parts(parts)
        assert (await broker.counts())[Status.WAITING] == 3_001
