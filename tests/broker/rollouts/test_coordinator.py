"""Roll-outs over the real broker, in virtual time, with agents that do as the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.errors import ClusterBusy, DuplicateTask, NotInState
from broker.rollout_commands import RolloutChange
from broker.rollouts.actions import REFUSED, UNHEALTHY, WAIT
from broker.rollouts.alarming import Alarms
from broker.rollouts.coordinator import Coordinator
from broker.rollouts.document import CHECK_NODE, EXECUTE, POST_CHECK, PRE_CHECK
from broker.rollouts.facts import Alarm
from broker.rollouts.pinging import Pings
from broker.rollouts.record import Gate, Phase, Rollout, State, encode_rollout, load
from broker.rollouts.rollouts import AsyncRollouts
from broker.service import Broker
from broker.settings import Limit
from herdbook.metrics import PrometheusMetrics
from tests.broker.rollouts.agents import Agent, Herd, agents, document
from tests.broker.service.yard import opened
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually

WHOLE = [PRE_CHECK, EXECUTE, POST_CHECK]


class Yard:
    """A broker with a coordinator, nodes, and the alarms that were told."""

    def __init__(self, broker: Broker, herd: Herd | None = None) -> None:
        self.broker = broker
        self.herd = herd or Herd()
        self.rollouts = AsyncRollouts(broker)
        self.told: list[Alarm] = []
        self.members: Sequence[str] = ()
        self.metrics = PrometheusMetrics()
        self.coordinator = self.coordinate()

    def coordinate(self) -> Coordinator:
        """Another coordinator begins."""
        made = Coordinator(
            self.broker,
            discoveries={"members": self},
            alarms=Alarms(self._tell),
            pings=Pings(2_000, 6_000),
            metrics=self.metrics,
        )
        made.start()
        self.coordinator = made
        return made

    async def nodes(self, what: str) -> Sequence[str]:
        return self.members

    async def _tell(self, alarm: Alarm) -> None:
        self.told.append(alarm)

    async def until(self, name: str, reached: Callable[[Rollout], bool]) -> Rollout:
        """Wait until a roll-out is as wanted."""
        async with asyncio.timeout(300):
            while True:
                found = await self.rollouts.get(name)
                if found.nodes and reached(found):
                    return found
                await elapse(0.1)

    def gauge(self, name: str) -> float:
        """What a gauge says."""
        lines = self.metrics.text().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name))

    def kinds(self) -> set[str]:
        return {alarm.kind for alarm in self.told}


@asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    async with opened() as broker:
        made = Yard(broker)
        try:
            yield made
        finally:
            await made.coordinator.close()


def over(script: Callable[[Yard], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with yard() as made:
            await script(made)

    virtually(whole())


def test_each_node_is_checked_done_and_checked_one_at_a_time() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c")
        name = await yard.rollouts.start(document("a", "b", "c"), by="elsa")
        assert name.startswith("geo-17")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.state is State.FINISHED and rollout.count(Phase.DONE) == 3
        assert [yard.herd.parts(node) for node in "abc"] == [WHOLE] * 3
        assert yard.herd.most_acting == 1
        notes = await yard.rollouts.notes(name)
        assert notes[0].by == "elsa" and notes[0].text.startswith("started: restart 1")
        assert [note.text for note in notes if note.node == "b"][-1] == "is healthy: done"
        # The limit of the cluster was the roll-out's, and goes with it.
        await yard.until(name, lambda _: True)
        assert await yard.broker.settings_of("resource") == []
        assert await yard.broker.held_clusters() == [] and await yard.broker.slots() == []
        await yard.rollouts.remove(name)
        assert await yard.rollouts.list() == []

    over(script)


def test_a_failing_pre_check_costs_nobody_a_turn() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c")
        yard.herd.says[PRE_CHECK, "a"] = [WAIT] * 3 + [RuntimeError("no ring")]
        name = await yard.rollouts.start(document("a", "b", "c"))
        assert (await yard.rollouts.wait(name, 60_000)).state is State.FINISHED
        done = [node for part, node in yard.herd.steps if part == EXECUTE]
        assert done == ["b", "c", "a"]
        assert yard.herd.parts("a").count(PRE_CHECK) == 5

    over(script)


def test_an_agent_lost_in_its_action_counts_until_another_node_has_looked() -> None:
    async def script(yard: Yard) -> None:
        first, *_ = await agents(yard.broker, yard.herd, "a", "b", "c")
        yard.herd.hold = {(EXECUTE, "a")}
        yard.herd.says[CHECK_NODE, "a"] = [UNHEALTHY, UNHEALTHY, "healthy"]
        name = await yard.rollouts.start(document("a", "b", "c"))
        await yard.until(name, lambda known: known.nodes["a"].phase is Phase.EXECUTE)
        await elapse(1.0)
        await first.die()
        rollout = await yard.until(name, lambda known: known.nodes["a"].phase is Phase.UNKNOWN)
        assert rollout.counted == 1 and "unknown" in yard.kinds()
        assert yard.gauge("herdbook_rollouts_active") == 1
        assert yard.gauge("herdbook_rollouts_unproven_nodes") == 1
        # Its lease is over and its task has ended, and still nothing else begins.
        await yard.until(name, lambda known: known.nodes["a"].checks == 2)
        assert [part for part, _ in yard.herd.steps if part == EXECUTE] == [EXECUTE]
        await yard.until(name, lambda known: known.nodes["c"].phase is Phase.DONE)
        yard.herd.hold.clear()
        await Agent(yard.herd, "a").connect(yard.broker, "second")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.nodes["a"].tries == 1 and yard.herd.parts("a").count(EXECUTE) == 2
        assert yard.herd.most_acting == 1

    over(script)


def test_what_nobody_can_say_from_outside_waits_for_an_operator() -> None:
    async def script(yard: Yard) -> None:
        first, *_ = await agents(yard.broker, yard.herd, "a", "b")
        yard.herd.hold = {(EXECUTE, "a")}
        yard.herd.says[CHECK_NODE, "a"] = ["cannot"]
        name = await yard.rollouts.start(document("a", "b"))
        await yard.until(name, lambda known: known.nodes["a"].phase is Phase.EXECUTE)
        await elapse(1.0)
        await first.die()
        await yard.until(name, lambda known: known.nodes["a"].phase is Phase.UNKNOWN)
        await elapse(70.0)
        assert yard.herd.parts("b") == [] and yard.herd.parts("a").count(CHECK_NODE) == 1
        assert {"unknown", "stale", "ping"} - yard.kinds() in (set(), {"ping"})
        with pytest.raises(NotInState, match="nothing to clear"):
            await yard.rollouts.clear(name, "b")
        await yard.rollouts.clear(name, "a", done=True, by="elsa")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.state is State.FINISHED and yard.herd.parts("b") == WHOLE
        notes = await yard.rollouts.notes(name)
        assert ("elsa", "a", "cleared: done") in [(n.by, n.node, n.text) for n in notes]

    over(script)


def test_failed_post_checks_open_the_breaker_and_one_probe_closes_it() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c", "d")
        yard.herd.says[POST_CHECK, "a"] = [UNHEALTHY, UNHEALTHY]
        name = await yard.rollouts.start(document("a", "b", "c", "d", limit=2))
        rollout = await yard.until(name, lambda known: known.breaker.gate is Gate.OPEN)
        assert rollout.nodes["a"].phase is Phase.FAILED
        await elapse(1.5)
        begun = [node for part, node in yard.herd.steps if part == EXECUTE]
        assert set(begun) <= {"a", "b"}, "nothing begins while it is open"
        await yard.until(name, lambda known: known.nodes["a"].checks == 2)
        assert set(begun) == {node for part, node in yard.herd.steps if part == EXECUTE}
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.breaker.gate is Gate.CLOSED and rollout.count(Phase.DONE) == 4
        assert yard.herd.parts("a") == [*WHOLE, POST_CHECK, POST_CHECK]
        assert yard.herd.most_acting <= 2 and "breaker" in yard.kinds()

    over(script)


def test_what_failed_for_good_is_a_dead_letter_and_keeps_counting() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b")
        yard.herd.says[EXECUTE, "a"] = [RuntimeError("it broke")] * 3
        name = await yard.rollouts.start(document("a", "b"))
        rollout = await yard.until(name, lambda known: known.nodes["a"].phase is Phase.DEAD)
        assert rollout.nodes["a"].tries == 3 and "it broke" in rollout.nodes["a"].why
        await elapse(5.0)
        assert yard.herd.parts("b") == [] and "dead" in yard.kinds()
        await yard.rollouts.cancel(name, by="elsa")
        await elapse(5.0)
        assert (await yard.rollouts.get(name)).state is State.CANCELLING
        with pytest.raises(ClusterBusy):
            await yard.rollouts.start(document("a", "b", task_id="next"))
        await yard.rollouts.clear(name, "a")
        assert (await yard.rollouts.wait(name, 10_000)).state is State.CANCELLED
        assert await yard.rollouts.start(document("a", "b", task_id="next")) == "next"
        with pytest.raises(DuplicateTask):
            await yard.rollouts.start(document("x", task_id="next", cluster_name="other"))

    over(script)


def test_nodes_that_go_pause_what_they_would_break() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c", "d")
        yard.members = ("a", "b", "c")
        yard.herd.says[PRE_CHECK, "b"] = [WAIT] * 1_000
        yard.herd.says[PRE_CHECK, "c"] = [WAIT] * 1_000
        wanted = document(discovery="members:geo", limit=1)
        name = await yard.rollouts.start(wanted)
        await yard.until(name, lambda known: known.count(Phase.DONE) == 1)
        yard.members = ("a", "b", "c", "d")
        await yard.until(name, lambda known: known.count(Phase.DONE) == 2)
        yard.members = ("c", "d")
        rollout = await yard.until(name, lambda known: known.state is State.PAUSED)
        assert "2 nodes are gone or not proven healthy" in rollout.why
        del yard.herd.says[PRE_CHECK, "c"]
        await elapse(3.0)
        assert yard.herd.parts("c").count(EXECUTE) == 0 and "paused" in yard.kinds()
        await yard.rollouts.resume(name, by="elsa")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert sorted(rollout.nodes) == ["c", "d"] and rollout.state is State.FINISHED

    over(script)


def test_any_coordinator_goes_on_where_another_one_stopped() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c")
        name = await yard.rollouts.start(document("a", "b", "c", limit=2))
        for _ in range(12):
            await elapse(0.05)
            await yard.coordinator.close()
            yard.coordinate()
        others = [yard.coordinate(), yard.coordinate()]
        rollout = await yard.rollouts.wait(name, 60_000)
        for each in others:
            await each.close()
        assert rollout.state is State.FINISHED and yard.herd.most_acting <= 2
        assert [yard.herd.parts(node).count(EXECUTE) for node in "abc"] == [1, 1, 1]

    over(script)


def test_the_operators_limit_counts_and_pause_and_resume_do_as_they_say() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b", "c")
        await yard.broker.set("resource", "cluster:geo", Limit(0), "elsa")
        name = await yard.rollouts.start(document("a", "b", "c", limit=2))
        await elapse(5.0)
        assert yard.herd.steps == []
        await yard.rollouts.pause(name, "lunch", "elsa")
        await yard.broker.set("resource", "cluster:geo", Limit(1), "elsa")
        await elapse(5.0)
        assert yard.herd.steps == []
        with pytest.raises(NotInState):
            await yard.rollouts.pause(name)
        await yard.rollouts.resume(name)
        assert (await yard.rollouts.wait(name, 60_000)).state is State.FINISHED
        assert yard.herd.most_acting == 1
        assert await yard.broker.settings_of("resource") == [("resource", "cluster:geo", Limit(1))]

    over(script)


class _Raced:
    """A broker whose operator pauses and resumes a roll-out right after its first change."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.races = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def set(self, *said: Any) -> bool:
        changed = await self._broker.set(*said)
        await self._race()
        return changed

    async def put_rollout(self, change: RolloutChange, by: str = "") -> list[int]:
        task_ids = await self._broker.put_rollout(change, by)
        await self._race()
        return task_ids

    async def _race(self) -> None:
        if self.races:
            self.races -= 1
            operator = AsyncRollouts(self._broker)
            await operator.pause("first", "lunch", "elsa")
            await operator.resume("first", "elsa")


def _limits(broker: Broker) -> list[int | None]:
    gates = broker.term.scheduler.index.gates()
    return [gate.limit for gate in gates if gate.name == "cluster:geo" and gate.limit is not None]


def test_the_limit_of_a_roll_out_ends_with_it_even_if_an_operator_changes_it_at_any_time() -> None:
    async def script(yard: Yard) -> None:
        await yard.coordinator.close()
        raced: Any = _Raced(yard.broker)
        coordinator = Coordinator(raced, pings=Pings(2_000, 6_000))
        coordinator.start()
        yard.herd.lasts_s = lambda: 2.0
        await agents(yard.broker, yard.herd, *"abcde")
        await yard.rollouts.start(document(*"abcde", task_id="first"))
        await yard.until("first", lambda rollout: rollout.state is State.RUNNING)
        assert _limits(yard.broker) == [1]
        assert (await yard.rollouts.wait("first", 300_000)).state is State.FINISHED
        assert raced.races == 0 and yard.herd.most_acting == 1
        assert _limits(yard.broker) == []
        await yard.rollouts.start(document(*"abcde", task_id="second", limit=4))
        assert (await yard.rollouts.wait("second", 300_000)).state is State.FINISHED
        assert yard.herd.most_acting == 4
        await coordinator.close()

    over(script)


def test_a_limit_that_an_operator_sets_during_a_roll_out_stays_after_it() -> None:
    async def script(yard: Yard) -> None:
        yard.herd.lasts_s = lambda: 2.0
        await agents(yard.broker, yard.herd, *"abc")
        name = await yard.rollouts.start(document(*"abc", limit=2))
        await yard.until(name, lambda rollout: rollout.state is State.RUNNING)
        assert _limits(yard.broker) == [2]
        await yard.broker.set("resource", "cluster:geo", Limit(1), "elsa")
        assert _limits(yard.broker) == [1]
        await yard.broker.set("resource", "cluster:geo", None, "elsa")
        assert _limits(yard.broker) == [2]
        await yard.broker.set("resource", "cluster:geo", Limit(1), "elsa")
        assert (await yard.rollouts.wait(name, 60_000)).state is State.FINISHED
        assert _limits(yard.broker) == [1]

    over(script)


def test_the_next_leader_keeps_to_the_limit_of_a_roll_out() -> None:
    async def scenario() -> None:
        cluster = await Cluster.of(1)
        for term in range(2):
            async with opened(cluster=cluster) as broker:
                rollouts = AsyncRollouts(broker)
                if not term:
                    await rollouts.start(document(*"abc", limit=2))
                assert _limits(broker) == [2]

    virtually(scenario())


@pytest.mark.parametrize("limit", [2, 1])
def test_only_the_limit_that_an_older_version_stored_is_removed_and_no_operators_limit(
    limit: int,
) -> None:
    async def script(yard: Yard) -> None:
        await yard.coordinator.close()
        await yard.broker.set("resource", "cluster:geo", Limit(limit), "coordinator")
        name = await yard.rollouts.start(document(*"abc", limit=2))
        row = await yard.broker.rollout(name)
        old = load(row)
        old.capped = True
        change = RolloutChange(name, row.version, encode_rollout(old), row.cluster)
        await yard.broker.put_rollout(change)
        yard.coordinate()
        await agents(yard.broker, yard.herd, *"abc")
        assert (await yard.rollouts.wait(name, 60_000)).state is State.FINISHED
        # The older version stored the limit of the document, 2. An operator set the other one.
        assert _limits(yard.broker) == [1] * (limit == 1)

    over(script)


def test_pings_go_to_every_agent_and_silence_is_alarmed() -> None:
    async def script(yard: Yard) -> None:
        first, second = await agents(yard.broker, yard.herd, "a", "b")
        await elapse(10.0)
        assert min(first.pings, second.pings) >= 3 and yard.told == []
        await yard.broker.set("type", "ping:b", Limit(0), "elsa")
        await elapse(15.0)
        assert [(alarm.kind, alarm.node) for alarm in yard.told] == [("ping", "b")]
        assert yard.gauge("herdbook_rollouts_ping_age_seconds") > 6

    over(script)


def test_roll_outs_over_clusters_that_share_a_node_never_meet_on_it() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b")
        yard.herd.hold = {(PRE_CHECK, "a")}
        first = await yard.rollouts.start(document("a", "b", task_id="one"))
        await yard.until(first, lambda known: known.nodes["a"].phase is Phase.PRE_CHECK)
        second = await yard.rollouts.start(document("a", "b", cluster_name="other", task_id="two"))
        rollout = await yard.until(second, lambda known: known.count(Phase.DONE) == 1)
        assert rollout.nodes["a"].phase is Phase.PENDING
        assert yard.herd.parts("a") == [PRE_CHECK]

    over(script)


def test_a_roll_out_survives_the_death_of_the_leader() -> None:
    async def script() -> None:
        cluster = await Cluster.of(1)
        herd = Herd()
        herd.hold = {(EXECUTE, "a")}
        async with opened(cluster=cluster) as broker:
            yard = Yard(broker, herd)
            living = await agents(broker, herd, "a", "b", "c")
            name = await yard.rollouts.start(document("a", "b", "c"))
            await yard.until(name, lambda known: known.nodes["a"].phase is Phase.EXECUTE)
            await elapse(1.0)
            await yard.coordinator.close()
        for each in living:
            await each.die()
        async with opened(cluster=cluster) as broker:
            yard = Yard(broker, herd)
            await agents(broker, herd, "b", "c")
            herd.says[CHECK_NODE, "a"] = [UNHEALTHY, UNHEALTHY]
            rollout = await yard.until(name, lambda known: known.nodes["a"].checks == 1)
            # The next leader gives the lost agent a lease of its own, then others look at its node.
            assert herd.parts("b").count(EXECUTE) + herd.parts("c").count(EXECUTE) == 0
            assert rollout.nodes["a"].phase is Phase.UNKNOWN
            herd.hold.clear()
            await Agent(herd, "a").connect(broker, "second")
            rollout = await yard.rollouts.wait(name, 60_000)
            assert rollout.state is State.FINISHED and herd.most_acting == 1
            await yard.coordinator.close()

    virtually(script())


def test_another_version_is_refused_untouched_and_the_roll_out_pauses() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a", "b")
        yard.herd.says[PRE_CHECK, "a"] = [REFUSED]
        name = await yard.rollouts.start(document("a", "b"))
        rollout = await yard.until(name, lambda known: known.state is State.PAUSED)
        assert rollout.why == "a: as it was said" and rollout.nodes["a"].phase is Phase.PENDING
        await elapse(5.0)
        assert not [part for part, _ in yard.herd.steps if part == EXECUTE]
        await yard.rollouts.resume(name)
        assert (await yard.rollouts.wait(name, 60_000)).state is State.FINISHED

    over(script)


def test_an_agent_that_comes_back_late_is_waited_for_after_its_action() -> None:
    async def script(yard: Yard) -> None:
        first, *_ = await agents(yard.broker, yard.herd, "a", "b")
        yard.herd.hold = {(POST_CHECK, "a")}
        name = await yard.rollouts.start(document("a", "b"))
        await yard.until(name, lambda known: known.nodes["a"].phase is Phase.POST_CHECK)
        await elapse(1.0)
        # As a machine does that goes down after its action returned.
        await first.die()
        await yard.until(name, lambda known: known.nodes["a"].checks == 1)
        assert yard.herd.parts("b") == []
        yard.herd.hold.clear()
        await Agent(yard.herd, "a").connect(yard.broker, "second")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.state is State.FINISHED and yard.herd.parts("a").count(EXECUTE) == 1

    over(script)


def test_what_cannot_begin_says_why_and_frees_its_cluster() -> None:
    async def script(yard: Yard) -> None:
        yard.members = ("a", "b")
        name = await yard.rollouts.start(document(discovery="members:geo", limit=2))
        rollout = await yard.rollouts.wait(name, 10_000)
        assert rollout.state is State.CANCELLED
        assert rollout.why == "it cannot begin: limit 2 of 2 nodes leaves none alone"
        nowhere = await yard.rollouts.start(document(discovery="dns:geo"))
        await elapse(3.0)
        starting = await yard.rollouts.get(nowhere)
        assert starting.state is State.STARTING
        assert starting.why.startswith("nothing begins: there is no discovery 'dns' here")
        assert "discovery" in yard.kinds()
        await yard.rollouts.cancel(nowhere)
        assert (await yard.rollouts.wait(nowhere, 10_000)).state is State.CANCELLED
        assert await yard.broker.held_clusters() == []

    over(script)


def test_what_waits_for_agents_says_so_and_says_it_no_more_when_they_are_there() -> None:
    async def script(yard: Yard) -> None:
        await agents(yard.broker, yard.herd, "a")
        name = await yard.rollouts.start(document("a", "b", "c"))
        await yard.until(name, lambda known: known.nodes["a"].phase is Phase.DONE)
        [waits] = await yard.rollouts.list()
        assert waits.why == (
            "no agent is connected of b and 1 more nodes: start it there "
            "(herdbook worker --agent b --tasks MODULE)"
        )
        assert waits.nodes["b"].why == "its agent is not connected"
        assert "not connected" not in waits.nodes["a"].why
        assert load(await yard.broker.rollout(name)).why == "", "nothing of it is written down"
        await agents(yard.broker, yard.herd, "b", "c")
        rollout = await yard.rollouts.wait(name, 60_000)
        assert rollout.state is State.FINISHED
        assert not any("agent" in node.why for node in rollout.nodes.values())

    over(script)
