"""What a coordinator has seen of the world when it plans, and what it is to do then.

Invariants:
- What an attempt came to is told apart only as far as its agent's word goes: without a word, the
  action may have done anything, and so may an attempt that was ended from outside.
"""

import enum
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.commands import Spec
from broker.ending import EXPIRED
from broker.rollout_commands import Note
from broker.rollouts.actions import WHY_LENGTH_MAX, Verdict
from broker.task import FINAL_STATES, Status, Task

_decode_verdict: Final = msgspec.json.Decoder(Verdict).decode


class EndKind(enum.Enum):
    """How a step's task ended."""

    VERDICT = enum.auto()
    """Its code returned."""
    FAILED = enum.auto()
    """Its agent says that it failed."""
    UNBEGUN = enum.auto()
    """No agent was ever given it."""
    LOST = enum.auto()
    """Nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a step's task. `verdict` is a word of `actions`."""

    kind: EndKind
    verdict: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a human should look at. `kind` is one of `ALARMS`."""

    kind: str
    rollout: str
    node: str
    owner: str
    text: str


UNKNOWN: Final = "unknown"
DEAD: Final = "dead"
BREAKER: Final = "breaker"
PAUSED: Final = "paused"
STALE: Final = "stale"
DISCOVERY: Final = "discovery"
PING: Final = "ping"
ENDED: Final = "ended"
ALARMS: Final = (UNKNOWN, DEAD, BREAKER, PAUSED, STALE, DISCOVERY, PING, ENDED)


@dataclass(frozen=True, slots=True)
class Facts:
    """The world. `ends` are of tasks of the record, `unbegun` those that wait for an agent yet."""

    ends: dict[int, End] = field(default_factory=dict)
    unbegun: frozenset[int] = frozenset()
    agents: frozenset[str] = frozenset()
    """Nodes whose agent is connected."""
    busy: frozenset[str] = frozenset()
    """Nodes that a step of another roll-out holds."""
    limit: int | None = None
    """The operator's limit of the cluster, if there is one."""
    discovered: tuple[str, ...] | None = None
    """The nodes, if they are known now."""
    undiscovered: str = ""
    """Why they are not."""


@dataclass(slots=True)
class Plan:
    """What is to be done: `specs` and `notes` go with the record, the others follow it."""

    specs: list[Spec] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


def end_of(task: Task | None, result: bytes = b"") -> End | None:
    """How a step's task ended; None: it goes on. No task: it was removed, who knows after what."""
    if task is None:
        return End(EndKind.LOST, why="its task was removed")
    if task.status not in FINAL_STATES:
        return None
    why = task.error.partition("\n")[0][:WHY_LENGTH_MAX] or task.status.name.lower()
    if task.status is Status.FINISHED:
        try:
            verdict = _decode_verdict(result)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return End(EndKind.FAILED, why=f"its agent answers in another way: {error}")
        return End(EndKind.VERDICT, verdict.verdict, verdict.why)
    if not task.attempt:
        return End(EndKind.UNBEGUN, why=why)
    # Without a session it ended without word of its worker; past its deadline, or cancelled, it
    # was ended somewhere in the middle.
    told = task.status is Status.ERROR and task.session and task.error != EXPIRED
    return End(EndKind.FAILED if told else EndKind.LOST, why=why)
