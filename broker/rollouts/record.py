"""What is known of a roll-out: one record, which `plan` takes from one state to the next.

Invariants:
- A node counts against the limit from the moment in which its step begins until it is proven
  healthy: `counted` is the only judge of that.
- A node has at most one task at a time, and only `BUSY` nodes have one, and `UNKNOWN` ones, which
  are looked at from outside.
"""

import enum
from typing import Final

import msgspec

from broker.rollout_commands import RolloutRow
from broker.rollouts.document import Document

NEVER_MS: Final = 2**59


class State(enum.IntEnum):
    """Where a roll-out is."""

    STARTING = 0
    """Its nodes are not known yet."""
    RUNNING = 1
    PAUSED = 2
    """Nothing begins; what has begun is finished and proven."""
    CANCELLING = 3
    """As paused, for good; it ends when every node is proven healthy."""
    FINISHED = 4
    CANCELLED = 5


class Phase(enum.IntEnum):
    """Where a node is."""

    PENDING = 0
    PRE_CHECK = 1
    EXECUTE = 2
    POST_CHECK = 3
    DONE = 4
    FAILED = 5
    """The action failed, or the post-check; it is tried again."""
    UNKNOWN = 6
    """Its agent was lost in the action: nobody knows how far it came."""
    DEAD = 7
    """It failed for good: an operator must look at it."""
    GONE = 8
    """Discovery does not name it any more."""
    SKIPPED = 9
    """It is healthy, and the action was not done: it was tried too often, or is left out."""


ENDED: Final = frozenset((State.FINISHED, State.CANCELLED))
BUSY: Final = frozenset((Phase.PRE_CHECK, Phase.EXECUTE, Phase.POST_CHECK))
COUNTED: Final = BUSY | {Phase.FAILED, Phase.UNKNOWN, Phase.DEAD, Phase.GONE}
SETTLED: Final = frozenset((Phase.DONE, Phase.SKIPPED))


class Node(msgspec.Struct, array_like=True):
    """A node of a roll-out.

    `task`: its task's id, 0: none; negative: the task at that place, from -1 on, of those that the
    change began. `tries`: how often the action was begun and did not succeed; `checks`: how often
    a check failed since.
    """

    phase: Phase = Phase.PENDING
    task: int = 0
    tries: int = 0
    checks: int = 0
    due_ms: int = 0
    """Not before."""
    again: Phase = Phase.PENDING
    """What is tried again if it failed; where it was before it was gone."""
    why: str = ""
    since_ms: int = 0


class Gate(enum.IntEnum):
    """The circuit breaker."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2


class Breaker(msgspec.Struct, array_like=True):
    """Opens when post-checks fail; lets one probe through when it was open for its time."""

    gate: Gate = Gate.CLOSED
    failures: int = 0
    until_ms: int = 0
    probe: str = ""


class Rollout(msgspec.Struct, array_like=True):
    """A roll-out. Times are milliseconds of the broker's clock."""

    name: str
    document: Document
    state: State = State.STARTING
    nodes: dict[str, Node] = {}
    breaker: Breaker = msgspec.field(default_factory=Breaker)
    why: str = ""
    """Why it is paused, or how it ended."""
    started_ms: int = 0
    progress_ms: int = 0
    """When a node was done last."""
    stale: bool = False
    """It was alarmed that nothing goes on."""
    undiscovered: str = ""
    """Why the nodes are not known at the moment."""
    capped: bool = False
    """An older version stored the roll-out's limit as a setting, which is to be removed."""

    @property
    def counted(self) -> int:
        """How many nodes are not proven healthy."""
        return sum(node.phase in COUNTED for node in self.nodes.values())

    def count(self, *phases: Phase) -> int:
        """How many nodes are in these phases."""
        return sum(node.phase in phases for node in self.nodes.values())

    @property
    def tasks(self) -> dict[int, str]:
        """The tasks under way, and the node of each."""
        return {node.task: name for name, node in self.nodes.items() if node.task > 0}


encode_rollout: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Rollout).decode


def load(row: RolloutRow) -> Rollout:
    """The record of a row, with the ids of the tasks that its last change began."""
    rollout = _decode(row.record)
    for node in rollout.nodes.values():
        if node.task < 0:
            node.task = row.task_ids[-node.task - 1]
    return rollout
