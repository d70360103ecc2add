"""The tasks of a roll-out: which agent takes them, how often they begin, what they hold.

Invariants:
- An action's task begins at most once: each further try is a decision that is written down first.
- A task of a node is of a type and a group that no other worker than the node's agent takes.
- Of a node one part runs at a time, whichever roll-outs it is in: it holds the node's slot.
"""

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.commands import Spec
from broker.rollout_commands import RESERVED
from broker.rollouts.document import CHECK_NODE, EXECUTE, Step
from broker.rollouts.record import Rollout
from broker.settings import GROUP_MAX
from broker.task import Mode

TENANT: Final = "rollouts"
AGENT: Final = "agent:"
PING: Final = "ping:"
KEPT_MS: Final = 7 * 24 * 3_600_000
_GROUPS: Final = GROUP_MAX - 1_000_000
_encode: Final = msgspec.json.Encoder().encode


def agent_id(node: str) -> str:
    """The worker's id of a node's agent."""
    return AGENT + node


def step_type(node: str) -> str:
    """The type of the steps that a node's agent takes."""
    return RESERVED + node


def ping_type(node: str) -> str:
    """The type of the pings that a node's agent takes."""
    return PING + node


def group_of(node: str) -> int:
    """The group of a node's agent, above those that people number themselves.

    Two nodes may share one, as all groups are numbers; their types still differ.

    >>> group_of("a") != group_of("b")
    True
    """
    drawn = int.from_bytes(blake2b(node.encode(), digest_size=8).digest())
    return 1_000_000 + drawn % _GROUPS


def cluster_resource(cluster_name: str) -> str:
    """The resource of which each action takes a unit."""
    return f"cluster:{cluster_name}"


def node_slot(node: str) -> str:
    """The slot that a node's part holds."""
    return f"node:{node}"


def step_spec(rollout: Rollout, part: str, name: str, agent: str, now_ms: int) -> Spec:
    """The task of a part: about the node `name`, for the agent of the node `agent`."""
    document, queue = rollout.document, rollout.document.queue
    # The agent needs to know of its own node, not of thousands of others.
    said = replace(document, nodes=[], destnode=name, task_id=rollout.name)
    step = Step(part=part, document=said, tries=rollout.nodes[name].tries, node=agent)
    execute = part == EXECUTE
    limit_ms = queue.action_ms if execute else queue.check_ms
    return Spec(
        step_type(agent),
        TENANT,
        _encode({"step": step}),
        # An action that waits is taken back by name; at a deadline one that runs would end, too.
        deadline_ms=0 if execute else now_ms + queue.start_ms + queue.check_ms,
        time_limit_ms=limit_ms,
        attempts_max=1,
        mode=Mode.AT_MOST_ONCE if execute else Mode.AT_LEAST_ONCE,
        slot="" if part == CHECK_NODE else node_slot(name),
        fixed=True,
        group=group_of(agent),
        resources=(cluster_resource(document.cluster_name),) if execute else (),
        retention_ms=KEPT_MS,
        dead_retention_ms=KEPT_MS,
        submitter=f"{RESERVED}{rollout.name}"[:200],
    )


def ping_spec(node: str, number: int, now_ms: int, timeout_ms: int) -> Spec:
    """A task that only goes there and back."""
    return Spec(
        ping_type(node),
        TENANT,
        _encode({"number": number}),
        deadline_ms=now_ms + timeout_ms,
        attempts_max=0,
        fixed=True,
        group=group_of(node),
        retention_ms=600_000,
        submitter=PING,
    )
