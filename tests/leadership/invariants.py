"""The invariants of leadership, as checks of what can be observed from outside at one moment.

The model checks them in every state that it reaches, the simulation on its replicas' answers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Answering(NamedTuple):
    """A node that would answer a read, or grant something, at this moment.

    `through` is how much of the log it has applied: a count of entries, or a position.
    """

    node: str
    epoch: int
    through: Any


class Moment(NamedTuple):
    """One moment of all nodes.

    `epoch` is that of the log's list. `acknowledged_through` is how much of the log was ever
    acknowledged, by whomever, as a value that can be compared with `Answering.through`.
    """

    epoch: int
    acknowledged_through: Any
    answering: tuple[Answering, ...]


def broken(moment: Moment) -> str:
    """Which invariant a moment breaks, "" if none."""
    for one in moment.answering:
        if one.through < moment.acknowledged_through:
            return f"stale read: {one} lacks what was acknowledged: {moment.acknowledged_through}"
        if one.epoch > moment.epoch:
            return f"epoch never begun: {one} leads in it, the list has {moment.epoch}"
    if len(moment.answering) > 1:
        return f"two leaders: {moment.answering} may answer at once"
    return ""


def went_back(before: Moment, after: Moment) -> str:
    """Which invariant the step between two moments breaks, "" if none."""
    if after.epoch < before.epoch:
        return f"epoch went back: from {before.epoch} to {after.epoch}"
    if after.acknowledged_through < before.acknowledged_through:
        return "what was acknowledged is less than before"
    return ""


def lost(log: Sequence[object], acknowledged: Sequence[object]) -> str:
    """Whether the log lacks an entry that was acknowledged, "" if not.

    Both are whole and from the first entry on; `acknowledged` ends at the newest acknowledged one.
    """
    if list(log[: len(acknowledged)]) != list(acknowledged):
        return f"lost acknowledgement: {acknowledged} was acknowledged, the log holds {log}"
    return ""
