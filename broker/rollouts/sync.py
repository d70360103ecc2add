"""Roll-outs for code without an event loop: a thin face over `AsyncRollouts`.

Invariants:
- A call makes one hop to the process's background loop, and raises what the other one raises.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from broker.rollout_commands import Note
from broker.rollouts.document import Document
from broker.rollouts.record import Rollout
from broker.rollouts.rollouts import AsyncRollouts

R = TypeVar("R")


class Run(Protocol):
    """Runs a call on the loop, and waits for it."""

    def __call__(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R: ...


class Rollouts:
    """The roll-outs of one broker. `run` is that of its `Tasks`."""

    def __init__(self, rollouts: AsyncRollouts, run: Run) -> None:
        self._rollouts = rollouts
        self._run = run

    def start(self, document: Document | Mapping[str, Any] | bytes, by: str = "") -> str:
        """Start a roll-out; its name. See `AsyncRollouts.start`."""
        return self._run(lambda: self._rollouts.start(document, by))

    def get(self, name: str) -> Rollout:
        """A roll-out as it is. Raises `UnknownRollout`."""
        return self._run(lambda: self._rollouts.get(name))

    def list(self, above: str = "", limit: int = 100) -> list[Rollout]:
        """Roll-outs by name, a page at a time."""
        return self._run(lambda: self._rollouts.list(above, limit))

    def notes(self, name: str) -> Sequence[Note]:
        """The audit log of a roll-out."""
        return self._run(lambda: self._rollouts.notes(name))

    def pause(self, name: str, why: str = "", by: str = "") -> None:
        """Begin nothing more until `resume`; see `AsyncRollouts.pause`."""
        self._run(lambda: self._rollouts.pause(name, why, by))

    def resume(self, name: str, by: str = "") -> None:
        """Go on; see `AsyncRollouts.resume`."""
        self._run(lambda: self._rollouts.resume(name, by))

    def cancel(self, name: str, by: str = "") -> None:
        """Begin nothing more for good; see `AsyncRollouts.cancel`."""
        self._run(lambda: self._rollouts.cancel(name, by))

    def clear(self, name: str, node: str, *, done: bool = False, by: str = "") -> None:
        """Say that a node is healthy; see `AsyncRollouts.clear`."""
        self._run(lambda: self._rollouts.clear(name, node, done=done, by=by))

    def remove(self, name: str) -> None:
        """Forget a roll-out that has ended. Raises `NotInState`."""
        self._run(lambda: self._rollouts.remove(name))

    def wait(self, name: str, timeout_ms: int | None = None) -> Rollout:
        """A roll-out when it has ended. Raises `WaitTimedOut`."""
        return self._run(lambda: self._rollouts.wait(name, timeout_ms))
