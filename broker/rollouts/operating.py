"""What operators do to a roll-out: pause, resume, cancel, clear. Pure functions of its record.

Invariants:
- Nothing here begins a step; the coordinator does, by its own rules.
- What runs goes on: an action that was begun is never ended half-way.
"""

from broker.errors import InvalidTask, NotInState
from broker.rollout_commands import Note
from broker.rollouts.document import wrong_nodes
from broker.rollouts.record import BUSY, COUNTED, ENDED, Gate, Phase, Rollout, State


def pause(rollout: Rollout, why: str, by: str, now_ms: int) -> list[Note]:
    """Begin nothing more. Raises `NotInState` unless it is running."""
    if rollout.state is not State.RUNNING:
        raise NotInState(f"roll-out {rollout.name} is {rollout.state.name.lower()}")
    rollout.state, rollout.why = State.PAUSED, why
    return [Note(now_ms, by, "", f"paused: {why}" if why else "paused")]


def resume(rollout: Rollout, by: str, now_ms: int) -> list[Note]:
    """Go on, without the nodes that are gone; an open breaker lets a probe through at once.

    Raises `NotInState` unless it is paused, or if too few nodes are left.
    """
    if rollout.state is not State.PAUSED:
        raise NotInState(f"roll-out {rollout.name} is {rollout.state.name.lower()}")
    gone = [name for name, node in rollout.nodes.items() if node.phase is Phase.GONE]
    present = [name for name in rollout.nodes if name not in gone]
    wrong = wrong_nodes(rollout.document, present)
    if wrong:
        raise NotInState(f"roll-out {rollout.name} cannot go on: {wrong}")
    for name in gone:
        del rollout.nodes[name]
    rollout.state, rollout.why = State.RUNNING, ""
    rollout.progress_ms, rollout.stale = now_ms, False
    if rollout.breaker.gate is Gate.OPEN:
        rollout.breaker.until_ms = now_ms
    without = f" without {', '.join(gone)}" if gone else ""
    return [Note(now_ms, by, "", f"resumed{without}"[:1_000])]


def cancel(rollout: Rollout, by: str, now_ms: int) -> list[Note]:
    """Begin nothing more for good; it ends when every node is proven healthy or cleared.

    Raises `NotInState` for one that has ended.
    """
    if rollout.state in ENDED:
        raise NotInState(f"roll-out {rollout.name} has ended")
    rollout.state = State.CANCELLING
    return [Note(now_ms, by, "", "cancelled")]


def clear(rollout: Rollout, name: str, done: bool, by: str, now_ms: int) -> list[Note]:
    """Take an operator's word that a node is healthy: it is done, or else waits for its turn.

    Raises `NotInState` for one that needs no word, or that has a task under way.
    """
    node = rollout.nodes.get(name)
    if node is None:
        raise InvalidTask(f"roll-out {rollout.name} has no node {name}")
    if rollout.state in ENDED:
        raise NotInState(f"roll-out {rollout.name} has ended")
    if node.phase in BUSY:
        text = f"a part of it runs on {name}: wait for its end, or cancel task {node.task}"
        raise NotInState(text)
    if node.phase not in COUNTED:
        raise NotInState(f"node {name} is {node.phase.name.lower()}: there is nothing to clear")
    if node.phase is Phase.GONE:
        del rollout.nodes[name]
        return [Note(now_ms, by, name, "cleared: it is gone for good")]
    node.phase = Phase.DONE if done else Phase.PENDING
    node.task = node.tries = node.checks = node.due_ms = 0
    node.why, node.since_ms = f"cleared by {by or 'an operator'}", now_ms
    rollout.progress_ms, rollout.stale = now_ms, False
    return [Note(now_ms, by, name, f"cleared: {'done' if done else 'to be done again'}")]
