"""What agents do to nodes: classes of reviewed code, registered by name in the agent's own modules.

    @action("cassandra:restart", version=1.2)
    class Restart(Action):
        def pre_check(self) -> bool:
            return ring_is_up()

        def execute(self) -> None:
            restart(self.step.destnode, **self.step.arguments)

        def post_check(self) -> bool:
            return node_answers(self.step.destnode)

A document names an action and its version; it never brings code. Each part runs as a task of its
own, in a child process of the agent, on an instance of its own.

Invariants:
- A document of another version, or of an action that is not registered, is refused before anything
  is touched.
- Whatever a check raises, the node counts as not safe, or not healthy.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from broker.errors import InvalidTask
from broker.rollouts.document import (
    CHECK_NODE,
    EXECUTE,
    POST_CHECK,
    PRE_CHECK,
    Step,
    version_text,
)

GO: Final = "go"
WAIT: Final = "wait"
REFUSED: Final = "refused"
DONE: Final = "done"
HEALTHY: Final = "healthy"
UNHEALTHY: Final = "unhealthy"
CANNOT: Final = "cannot"
WHY_LENGTH_MAX: Final = 500


class NotNow(Exception):
    """Raised by a check: it is not safe now, or not healthy, and this is why."""


class Verdict(msgspec.Struct, frozen=True):
    """What a part came to: `verdict` is one of the words of this module."""

    verdict: str
    why: str = ""


class Action:
    """What is done to a node, in parts. Made anew for each part, with the step that it is of."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def pre_check(self) -> bool | None:
        """Whether it is safe to begin now: False, or `NotNow`, puts the node back to wait."""
        return True

    def execute(self) -> None:
        """Do it. Raises if it failed. Begun at most once for each try that the document allows."""
        raise AssertionError("an action says what it does")

    def post_check(self) -> bool | None:
        """Whether node and cluster are healthy now: False, or `NotNow`, opens the breaker."""
        return True

    def check_node(self) -> bool | None:
        """Run on another node: whether `step.destnode`, whose agent was lost, is healthy.

        An action without one leaves that to an operator.
        """
        raise _Nobody


class _Nobody(Exception):
    """Nobody can say from outside."""


A = TypeVar("A", bound=type[Action])
_ACTIONS: Final[dict[str, tuple[type[Action], str]]] = {}


def action(name: str, *, version: str | float) -> Callable[[A], A]:
    """Register a class as the action of a name. Raises `InvalidTask` for a name that is taken."""

    def register(registered: A) -> A:
        before = _ACTIONS.get(name)
        if before is not None and before[0].__qualname__ != registered.__qualname__:
            raise InvalidTask(f"the action {name} is {before[0].__qualname__}")
        _ACTIONS[name] = registered, version_text(version)
        return registered

    return register


def actions() -> dict[str, str]:
    """The registered actions, and the version of each."""
    return {name: version for name, (_, version) in sorted(_ACTIONS.items())}


def perform(step: Step) -> Verdict:
    """Do a part of an action. Raises what `execute` raises."""
    found = _ACTIONS.get(step.document.action)
    if found is None:
        return Verdict(REFUSED, f"this agent knows no action {step.document.action}")
    registered, version = found
    asked = version_text(step.document.version)
    if asked != version:
        return Verdict(REFUSED, f"this agent has version {version} of it, not {asked}")
    if step.part == EXECUTE:
        registered(step).execute()
        return Verdict(DONE)
    if step.part == PRE_CHECK:
        return _judged(lambda: registered(step).pre_check(), GO, WAIT)
    if step.part == POST_CHECK:
        return _judged(lambda: registered(step).post_check(), HEALTHY, UNHEALTHY)
    if step.part == CHECK_NODE:
        return _judged(lambda: registered(step).check_node(), HEALTHY, UNHEALTHY)
    return Verdict(REFUSED, f"this agent knows no {step.part}")


def _judged(check: Callable[[], bool | None], good: str, bad: str) -> Verdict:
    try:
        told = check()
    except _Nobody:
        return Verdict(CANNOT, "the action has no check_node")
    except Exception as error:
        text = str(error) if isinstance(error, NotNow) else f"{type(error).__name__}: {error}"
        return Verdict(bad, text[:WHY_LENGTH_MAX])
    # Only a plain no is one: a check that returns nothing has not objected.
    return Verdict(good) if told is None or told else Verdict(bad, "the check said no")
