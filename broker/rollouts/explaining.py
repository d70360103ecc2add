"""Why a roll-out does not go on: what its record does not say, for it changes by itself.

Invariants:
- Nothing of it is written down: who looks sees the agents as they are now.
- What the record says of a node, or of the whole, stands before what is found here.
"""

from collections.abc import Set
from typing import Final

from broker.rollouts.record import BUSY, Phase, Rollout, State

_ITS_AGENT: Final = BUSY | {Phase.PENDING, Phase.FAILED}
_GOING_ON: Final = (State.STARTING, State.RUNNING)


def explain(rollout: Rollout, agents: Set[str]) -> None:
    """Fill in why nodes, and the whole, wait, where that is no event. `agents`: the linked ones."""
    if rollout.state not in _GOING_ON:
        return
    for name, node in rollout.nodes.items():
        if node.phase in _ITS_AGENT and name not in agents:
            before = f"{node.why}; " if node.why else ""
            node.why = f"{before}its agent is not connected"
    if rollout.why:
        return
    waiting = [name for name, node in rollout.nodes.items() if node.phase in _ITS_AGENT]
    if rollout.state is State.STARTING:
        waiting = rollout.document.nodes
    absent = [name for name in waiting if name not in agents]
    if rollout.undiscovered:
        rollout.why = f"nothing begins: {rollout.undiscovered}"
    elif absent:
        rollout.why = (
            f"no agent is connected of {_some(absent)}: start it there "
            f"(herdbook worker --agent {absent[0]} --tasks MODULE)"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1:,} more nodes" if len(names) > 1 else ""
    return f"{names[0]}{more}"
