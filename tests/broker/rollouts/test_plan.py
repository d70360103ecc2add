"""Single decisions of a plan."""

from typing import Any

from broker.rollouts.document import read_document
from broker.rollouts.facts import End, EndKind, Facts
from broker.rollouts.plan import advance
from broker.rollouts.record import Breaker, Gate, Node, Phase, Rollout, State
from tests.broker.rollouts.agents import PLAIN

NAMES = ("a", "b", "c", "d", "e")
NOW_MS = 1_000_000


def rollout(limit: int = 3, **nodes: Node) -> Rollout:
    wanted = read_document({**PLAIN, "limit": limit, "discovery": "members:geo"})
    known = {name: nodes.get(name, Node(since_ms=NOW_MS)) for name in NAMES}
    return Rollout("r", wanted, State.RUNNING, known, progress_ms=NOW_MS)


def seen(**more: object) -> Facts:
    facts: dict[str, Any] = {"agents": frozenset(NAMES), "discovered": NAMES, **more}
    return Facts(**facts)


def begun(known: Rollout, facts: Facts, now_ms: int = NOW_MS) -> list[str]:
    """The nodes for which something is sent."""
    advance(known, facts, now_ms)
    return [name for name, node in known.nodes.items() if node.task < 0]


def test_so_many_begin_as_the_least_of_the_limits_says_less_those_that_count() -> None:
    assert begun(rollout(), seen()) == ["a", "b", "c"]
    assert begun(rollout(), seen(limit=1)) == ["a"]
    assert begun(rollout(), seen(limit=9)) == ["a", "b", "c"]
    assert begun(rollout(), seen(limit=0)) == []
    dead = rollout(b=Node(Phase.DEAD), c=Node(Phase.GONE, again=Phase.DONE))
    assert begun(dead, seen(discovered=("a", "b", "d", "e"))) == ["a"]
    assert begun(rollout(a=Node(Phase.DONE)), seen(agents=frozenset("bd"))) == ["b", "d"]
    assert begun(rollout(), seen(busy=frozenset("ac"))) == ["b", "d", "e"]
    assert begun(rollout(), seen(discovered=None)) == []


def test_an_open_breaker_lets_nothing_begin_and_a_half_open_one_a_single_probe() -> None:
    known = rollout(d=Node(Phase.FAILED, again=Phase.POST_CHECK, due_ms=NOW_MS))
    known.breaker = Breaker(Gate.OPEN, 1, NOW_MS + 1)
    assert begun(known, seen()) == []
    # What failed is the probe, not one that nobody has touched yet.
    assert begun(known, seen(), NOW_MS + 1) == ["d"]
    assert known.breaker.gate is Gate.HALF_OPEN and known.breaker.probe == "d"


def test_a_step_that_no_agent_begins_is_taken_back_but_a_post_check_is_waited_for() -> None:
    late_ms = NOW_MS + 60_001
    for phase, cancels in ((Phase.PRE_CHECK, [7]), (Phase.EXECUTE, [7]), (Phase.POST_CHECK, [])):
        known = rollout(a=Node(phase, 7, since_ms=NOW_MS))
        assert advance(known, seen(unbegun=frozenset([7])), late_ms).cancels == cancels
        assert advance(known, seen(unbegun=frozenset([7])), late_ms - 1).cancels == []


def test_a_try_that_did_not_begin_leaves_its_node_as_healthy_as_it_was() -> None:
    unbegun = seen(ends={7: End(EndKind.UNBEGUN, why="cancelled")})
    for tries, phase in ((0, Phase.PENDING), (1, Phase.FAILED)):
        known = rollout(1, a=Node(Phase.EXECUTE, 7, tries))
        assert begun(known, unbegun) == ([] if tries else ["b"])
        assert known.nodes["a"].phase is phase


def test_silence_is_alarmed_once_until_something_goes_on() -> None:
    known = rollout()
    kinds = []
    for hour in range(1, 4):
        plan = advance(known, seen(agents=frozenset()), NOW_MS + hour * 3_600_001)
        kinds += [alarm.kind for alarm in plan.alarms]
    assert kinds == ["stale"] and known.stale
