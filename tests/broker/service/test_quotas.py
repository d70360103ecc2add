"""Quotas of tenants: what may wait is bounded, told exactly, and set while all of it runs."""

import asyncio
from pathlib import Path

import pytest

import herdbook
from broker.access import Asking
from broker.answering import WAITING_BYTES, WAITING_TASKS
from broker.commands import Refusal, Spec
from broker.errors import InvalidSetting, TenantFull
from broker.memory import MemoryBroker
from broker.settings import Quota
from broker.task import Status
from broker.tenant_calls import as_seen_by
from broker.worker import Registry, task
from herdbook.book import open_async

REGISTRY = Registry()


@task(registry=REGISTRY)
def milk() -> None:
    """Nothing to it."""


async def waiting(broker: MemoryBroker, tenant: str) -> tuple[int, int]:
    """What is told of a tenant: tasks and bytes."""
    found = {(each.kind, each.name): each.running for each in await broker.broker.resources()}
    return found[WAITING_TASKS, tenant], found[WAITING_BYTES, tenant]


async def test_a_submit_above_the_quota_is_refused_by_its_own_error_and_one_below_is_not() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        await broker.broker.set("quota", "acme", Quota(tasks=3))
        for _ in range(3):
            await broker.tasks.submit(milk, tenant="acme")
        with pytest.raises(TenantFull, match=r"tenant acme has 3 tasks waiting .limit 3."):
            await broker.tasks.submit(milk, tenant="acme")
        await broker.tasks.submit(milk, tenant="other")
        # No arguments are the two bytes of an empty object.
        assert await waiting(broker, "acme") == (3, 6)
        assert await broker.run_waiting() == 4
        assert await waiting(broker, "acme") == (0, 0)
        await broker.tasks.submit(milk, tenant="acme")


async def test_of_a_batch_those_are_taken_for_which_there_is_room() -> None:
    async with MemoryBroker() as broker:
        await broker.broker.set("quota", "acme", Quota(tasks=2))
        specs = [Spec("milk", "acme", b"%d" % number) for number in range(4)]
        specs.insert(3, Spec("milk", "other", b"moo"))
        answers = await broker.broker.submit(specs)
        assert [type(each) for each in answers] == [int, int, Refusal, int, Refusal]
        taken = [broker.broker.get(each) for each in answers if isinstance(each, int)]
        assert [each.payload for each in taken] == [b"0", b"1", b"moo"]
        assert [each.tenant for each in taken] == ["acme", "acme", "other"]
        # What comes after one that was refused is not taken for it.
        again = await broker.broker.submit([specs[0], Spec("milk", "other", b"a"), specs[3]])
        assert [type(each) for each in again] == [Refusal, int, int]


async def test_of_an_atomic_batch_none_is_taken_where_one_has_no_room() -> None:
    async with MemoryBroker() as broker:
        await broker.broker.set("quota", "acme", Quota(tasks=2))
        answers = await broker.broker.submit([Spec("milk", "acme")] * 3, atomic=True)
        codes = [each.code for each in answers if isinstance(each, Refusal)]
        assert codes == ["batch_refused", "batch_refused", "tenant_full"]
        assert await waiting(broker, "acme") == (0, 0)


async def test_bytes_of_payloads_count_small_and_large_ones() -> None:
    async with MemoryBroker() as broker:
        await broker.broker.set("quota", "acme", Quota(payload_bytes=10_000))
        few = [Spec("milk", "acme", b"x" * 100) for _ in range(10)]
        large = Spec("milk", "acme", b"x" * 8_000)
        assert all(isinstance(each, int) for each in await broker.broker.submit([*few, large]))
        assert await waiting(broker, "acme") == (11, 9_000)
        (refused,) = await broker.broker.submit([Spec("milk", "acme", b"x" * 1_001)])
        assert isinstance(refused, Refusal) and refused.code == "tenant_full"
        assert "9,000 bytes waiting" in refused.message
        (taken,) = await broker.broker.submit([Spec("milk", "acme", b"x" * 1_000)])
        assert isinstance(taken, int)
        await broker.broker.cancel([taken])
        assert await waiting(broker, "acme") == (11, 9_000)


async def test_submits_at_the_same_moment_do_not_pass_the_quota_together() -> None:
    async with MemoryBroker() as broker:
        await broker.broker.set("quota", "acme", Quota(tasks=5))
        batches = [broker.broker.submit([Spec("milk", "acme")] * 2) for _ in range(10)]
        answers = [each for batch in await asyncio.gather(*batches) for each in batch]
        assert sum(isinstance(each, int) for each in answers) == 5
        assert await waiting(broker, "acme") == (5, 0)


async def test_delayed_and_prepared_tasks_wait_too_and_ended_ones_do_not() -> None:
    async with MemoryBroker(registry=REGISTRY) as broker:
        await broker.broker.set("quota", "", Quota(tasks=100))
        await broker.broker.set("quota", "own", Quota())
        delayed = await broker.tasks.submit("milk", b"", tenant="acme", delay_ms=1_000)
        transaction = await broker.broker.begin()
        await broker.broker.submit([Spec("milk", "acme")] * 2, transaction=transaction)
        assert await waiting(broker, "acme") == (3, 0)
        await broker.broker.commit(transaction)
        assert await waiting(broker, "acme") == (3, 0)
        await broker.advance(1_000)
        assert (await delayed.get()).status is Status.WAITING
        await broker.broker.cancel([int(delayed)])
        assert await waiting(broker, "acme") == (2, 0)
        held = {each.name for each in await broker.broker.resources()}
        assert {"acme", "own"} <= held


async def test_a_quota_is_changed_while_tasks_wait_and_taken_away() -> None:
    async with MemoryBroker() as broker:
        await broker.broker.submit([Spec("milk", "acme")] * 10)
        await broker.broker.set("quota", "acme", Quota(tasks=4))
        assert await waiting(broker, "acme") == (10, 0)
        (refused,) = await broker.broker.submit([Spec("milk", "acme")])
        assert isinstance(refused, Refusal)
        await broker.broker.set("quota", "acme", None)
        (taken,) = await broker.broker.submit([Spec("milk", "acme")])
        assert isinstance(taken, int)
        assert not [each for each in await broker.broker.resources() if each.name == "acme"]


@pytest.mark.parametrize("quota", [Quota(tasks=-1), Quota(payload_bytes=-1)])
async def test_a_quota_below_nothing_is_refused(quota: Quota) -> None:
    async with MemoryBroker() as broker:
        with pytest.raises(InvalidSetting, match="below 0"):
            await broker.broker.set("quota", "acme", quota)


async def test_a_user_of_one_tenant_is_told_of_no_other_s_quota() -> None:
    async with MemoryBroker() as broker:
        for tenant in ("acme", "other"):
            await broker.broker.set("quota", tenant, Quota(tasks=3))
        calls = as_seen_by(broker.broker, Asking("ann", admin=False, tenants=("acme",)))
        assert {each.name for each in await calls.resources()} == {"acme"}


async def test_the_next_leader_counts_what_waits_from_the_rows(tmp_path: Path) -> None:
    async with open_async(tmp_path) as book:
        calls = await book.broker.open()
        await calls.set("quota", "acme", Quota(tasks=300, payload_bytes=100_000))
        specs = [Spec("milk", "acme", b"small")] * 200 + [Spec("milk", "acme", b"x" * 1_000)] * 20
        assert all(isinstance(each, int) for each in await calls.submit(specs))
        before = [each for each in await calls.resources() if each.name == "acme"]
    assert [each.running for each in before] == [220, 21_000]
    async with open_async(tmp_path) as book:
        calls = await book.broker.open()
        assert [each for each in await calls.resources() if each.name == "acme"] == before
        answers = await calls.submit([Spec("milk", "acme")] * 81)
        assert sum(isinstance(each, Refusal) for each in answers) == 1


def test_a_program_of_threads_hears_of_it_as_an_error(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        book.tasks.set("quota", "default", Quota(tasks=1))
        book.tasks.submit("milk", {})
        with pytest.raises(TenantFull, match="quota raised"):
            book.tasks.submit("milk", {})
