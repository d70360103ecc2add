"""Who is elected, in virtual time: nobody, while the leader that the list names may answer."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.errors import Deposed, MetadataUnavailable, VersionConflict
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.log_list import LogList, decode_list
from engine.log.log_writer import LogWriter
from engine.replica.election import Election, Holding
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.engine.metadata.held import HeldSession
from tests.engine.replica.yard import LOG_SETTINGS, on_the_loops_clock
from tests.simulation.virtual import elapse, virtually

LEASE_S = 1.0
LIST = "/logs/log/list"
OLD = "/logs/log/leader"


class _Candidate:
    """A replica that wants to lead, in a process of its own."""

    def __init__(self, cluster: Cluster, name: str, number: int, **lease: int) -> None:
        self.name = name
        self.session = HeldSession(cluster.tree, 100 + number)
        settings = replace(
            QUICK, metadata_timeout_ms=100_000, lease_ms=lease.get("lease_ms", 1_000)
        )
        self.client: LedgerClient = cluster.client(settings, store=self.session)
        self.log = ReplicatedLog(self.client, "log", LOG_SETTINGS)
        self.election = Election(self.client, self.log, replica=name, address=f"{name}:1")
        self.holding: Holding | None = None
        self.writer: LogWriter | None = None
        self.healthy = True

    async def campaign(self) -> float:
        """Be elected and lead; returns when that was."""
        while True:
            holding = await self.election.campaign(lambda: True, lambda: self.healthy, lambda: 0.0)
            try:
                self.writer = await self.log.lead(holding.leader, holding.after)
            except Deposed:
                await holding.resign()
                continue
            self.holding = holding
            return asyncio.get_running_loop().time()

    def holds(self) -> bool:
        return self.holding is not None and self.holding.holds()

    def stop(self) -> None:
        """As a process that is paused or killed."""
        assert self.client.liveness._renewing is not None
        self.client.liveness._renewing.cancel()

    async def resign(self) -> None:
        assert self.holding is not None
        await self.holding.resign()


class _Field:
    """A cluster and its candidates."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made: list[_Candidate] = []

    def candidate(self, name: str, **lease: int) -> _Candidate:
        made = _Candidate(self.cluster, name, len(self.made), **lease)
        self.made.append(made)
        return made

    def list(self) -> LogList:
        found = self.cluster.tree.tree.get(LIST)
        return LogList() if found is None else decode_list(found.value)

    async def close(self) -> None:
        for each in self.made:
            each.session.let_go()
            each.election.close()
            if each.writer is not None:
                each.writer.abandon(Deposed("the test has ended"))
            await each.client.liveness.close()


def in_field(script: Callable[[_Field], Coroutine[Any, Any, None]]) -> None:
    """Run a script in virtual time."""

    async def run() -> None:
        cluster = await on_the_loops_clock()
        field = _Field(cluster)
        try:
            await script(field)
        finally:
            await field.close()

    virtually(run())


def test_the_first_leader_ever_waits_for_nobody_and_is_named_in_the_list() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        began_s = asyncio.get_running_loop().time()
        assert await one.campaign() - began_s < 0.1 and one.holds()
        now = field.list()
        assert now.leader is not None and now.leader_address == "one:1"
        assert (now.leader.epoch, now.epoch, now.format_major) == (1, 1, 2)

    in_field(script)


def test_nobody_is_elected_while_the_process_of_the_leader_renews_its_lease() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(20.0)
        assert one.holds() and not campaign.done() and two.election.leader == "one:1"
        campaign.cancel()

    in_field(script)


def test_the_next_leader_is_elected_after_the_lease_of_a_silent_one_has_ended() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(3.0)
        one.stop()
        stopped_s = asyncio.get_running_loop().time()
        while not campaign.done():
            assert not (one.holds() and two.holds())
            held = one.holds()
            await elapse(0.01)
        assert not held and await campaign - stopped_s < 2 * LEASE_S

    in_field(script)


def test_a_leader_that_resigns_is_followed_at_once_though_its_process_lives() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(3.0)
        await one.resign()
        assert not one.holds() and field.list().leader_address == ""
        began_s = asyncio.get_running_loop().time()
        assert await campaign - began_s < 0.2 and two.holds() and not one.holds()

    in_field(script)


def test_a_leader_that_resigns_answers_nothing_while_that_is_on_its_way() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        await one.campaign()
        one.session.hold()
        resigning = asyncio.create_task(one.resign())
        await elapse(0.01)
        assert not resigning.done() and not one.holds()
        one.session.let_go()
        await resigning
        assert field.list().leader_address == ""

    in_field(script)


def test_a_resignation_that_the_store_did_not_take_is_sent_again() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(2.0)
        failing = True

        def before(kind: str, key: str) -> None:
            if failing and kind in ("set", "sync") and key in (LIST, ""):
                raise MetadataUnavailable("away")

        one.session.before = before
        await one.resign()
        await elapse(3.0)
        assert not campaign.done() and not one.holds()
        failing = False
        await elapse(1.0)
        assert campaign.done() and two.holds()

    in_field(script)


def test_a_resignation_is_still_sent_if_its_caller_is_cancelled() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(2.0)
        one.session.hold()
        resigning = asyncio.create_task(one.resign())
        await elapse(0.1)
        resigning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resigning
        one.session.let_go()
        await elapse(1.0)
        assert campaign.done() and two.holds() and not one.holds()

    in_field(script)


def test_a_takeover_that_is_still_on_its_way_when_its_leader_resigns_never_arrives() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await (await one.log.lead()).close()
        holding = await one.election.campaign(lambda: True, lambda: True, lambda: 0.0)
        assert holding.after is not None and holding.after.version is not None
        await holding.resign()
        late = msgspec.msgpack.encode(msgspec.structs.replace(field.list(), leader=holding.leader))
        with pytest.raises(VersionConflict):
            await one.client.store.set(LIST, late, holding.after.version)
        await two.campaign()
        assert two.holds()

    in_field(script)


def test_a_resignation_that_is_written_late_does_not_end_the_next_attempt_of_its_replica() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        failing = True

        def before(kind: str, key: str) -> None:
            if failing and kind in ("set", "sync", "create") and key in (LIST, ""):
                raise MetadataUnavailable("away")

        one.session.before = before
        first = await one.election.campaign(lambda: True, lambda: True, lambda: 0.0)
        await first.resign()
        failing = False
        await one.campaign()
        assert one.holding is not None and one.holding.epoch == first.epoch
        waiting = asyncio.create_task(two.campaign())
        await elapse(3.0)
        assert one.holds() and not waiting.done()
        await one.resign()
        await waiting

    in_field(script)


def test_a_leader_that_was_silent_for_long_learns_of_its_successor() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(2.0)
        one.session.hold()
        await campaign
        assert not one.holds()
        one.session.let_go()
        await elapse(1.0)
        assert one.holding is not None and one.holding.lost.is_set() and two.holds()

    in_field(script)


def test_an_unhealthy_leader_lets_another_lead_after_a_lease() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        await one.campaign()
        campaign = asyncio.create_task(two.campaign())
        await elapse(2.0)
        one.healthy = False
        await elapse(0.6)
        assert one.holds(), "not at once"
        await elapse(1.4)
        assert one.holding is not None and one.holding.ill and not one.holds()
        assert campaign.done() and two.holds()

    in_field(script)


def test_of_many_candidates_one_is_elected() -> None:
    async def script(field: _Field) -> None:
        many = [field.candidate(f"c{number}") for number in range(6)]
        campaigns = [asyncio.create_task(each.campaign()) for each in many]
        await elapse(10.0)
        assert sum(task.done() for task in campaigns) == 1
        assert sum(each.holds() for each in many) == 1
        for task in campaigns:
            task.cancel()

    in_field(script)


def test_whoever_could_have_led_before_waits_for_who_leads_since() -> None:
    async def script(field: _Field) -> None:
        one, two = field.candidate("one"), field.candidate("two")
        able = False
        campaign = asyncio.create_task(
            two.election.campaign(lambda: able, lambda: True, lambda: 0.0)
        )
        await elapse(0.5)
        await one.campaign()
        able = True
        await elapse(5.0)
        assert not campaign.done() and one.holds()
        campaign.cancel()

    in_field(script)


def test_two_replicas_of_one_process_follow_each_other() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        beside = Election(one.client, one.log, replica="beside", address="beside:1")
        await one.campaign()
        campaign = asyncio.create_task(beside.campaign(lambda: True, lambda: True, lambda: 0.0))
        await elapse(5.0)
        assert not campaign.done() and one.holds()
        await one.resign()
        await asyncio.wait_for(campaign, 1.0)
        beside.close()

    in_field(script)


def test_a_replica_that_comes_back_in_another_process_waits_for_the_former_one() -> None:
    async def script(field: _Field) -> None:
        paused, again = field.candidate("one"), field.candidate("one")
        await paused.campaign()
        paused.stop()
        campaign = asyncio.create_task(again.campaign())
        while not campaign.done():
            held = paused.holds()
            await elapse(0.01)
        assert not held and not paused.holds() and again.holds()

    in_field(script)


def test_who_is_elected_when_its_process_is_over_has_lost_the_lead() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        incarnation = await one.client.liveness.incarnation()

        def able() -> bool:
            incarnation._stop()
            return True

        holding = await one.election.campaign(able, lambda: True, lambda: 0.0)
        assert holding.lost.is_set() and not holding.holds()

    in_field(script)


def test_a_replica_whose_term_ended_without_a_word_is_elected_again_at_once() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        await one.campaign()
        assert one.writer is not None
        one.writer.abandon(Deposed("it hangs"))
        began_s = asyncio.get_running_loop().time()
        assert await one.campaign() - began_s < 0.2
        assert field.list().epoch == 2

    in_field(script)


def test_who_defers_to_others_is_elected_after_them_and_without_them_none_the_less() -> None:
    async def script(field: _Field) -> None:
        one, two, three = (field.candidate(name) for name in ("one", "two", "three"))
        await one.campaign()
        two.election.defer(2.0)
        campaigns = [asyncio.create_task(each.campaign()) for each in (two, three)]
        await elapse(5.0)
        await one.resign()
        await elapse(1.0)
        assert three.holds() and not two.holds()
        await three.resign()
        await elapse(1.0)
        assert not two.holds()
        await elapse(1.5)
        assert two.holds()
        await asyncio.gather(*campaigns)

    in_field(script)


def test_a_deference_that_is_taken_back_while_nobody_leads_costs_no_more_time() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        one.election.defer(1_000.0)
        campaign = asyncio.create_task(one.campaign())
        await elapse(3.0)
        assert not campaign.done()
        one.election.defer(0.0)
        await elapse(0.3)
        assert campaign.done()

    in_field(script)


@pytest.mark.parametrize("resigned", [False, True])
def test_the_key_by_which_older_programs_elect_is_waited_for(resigned: bool) -> None:
    async def script(field: _Field) -> None:
        store = field.cluster.tree.session()
        await store.create(LIST, msgspec.msgpack.encode({"epoch": 3}))
        beat = {"replica": "old", "address": "old:1", "token": 1, "lease_ms": 2_000}
        value = msgspec.msgpack.encode(beat | ({"resigned": True} if resigned else {}))
        version = await store.create(OLD, value)
        one = field.candidate("one")
        campaign = asyncio.create_task(one.campaign())
        if not resigned:
            for _ in range(10):
                await elapse(0.5)
                version = await store.set(OLD, value, version)
                assert not campaign.done(), "its holder renews it"
            await elapse(1.9)
            assert not campaign.done()
            await elapse(1.0)
        else:
            await elapse(0.2)
        assert campaign.done() and one.holds() and field.list().epoch == 4

    in_field(script)


def test_a_log_that_was_led_without_an_election_is_taken_over_after_a_lease() -> None:
    async def script(field: _Field) -> None:
        one = field.candidate("one")
        await (await one.log.lead()).close()
        assert field.list().format_major == 1, "older programs may still read it"
        began_s = asyncio.get_running_loop().time()
        assert LEASE_S < await one.campaign() - began_s < 2 * LEASE_S

    in_field(script)
