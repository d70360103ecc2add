"""What follows when a step's task has ended: the one place that decides it.

Invariants:
- A node is proven healthy by its own post-check, or, if it is unknown, from another node; by
  nothing else here.
- A pre-check touches nothing, so whatever becomes of it the node waits again and counts no more.
- An action of which no word came makes its node unknown, and is not tried again before that is
  cleared.
"""

from typing import Final

from broker.rollout_commands import Note
from broker.rollouts import facts as alarms
from broker.rollouts.actions import CANNOT, GO, HEALTHY, REFUSED
from broker.rollouts.facts import Alarm, End, EndKind, Plan
from broker.rollouts.record import NEVER_MS, Gate, Node, Phase, Rollout, State

BY: Final = "coordinator"
WHY_BYTES_MAX: Final = 120
"""Of what is kept with each node; the audit log has it all."""
_DOUBLINGS_MAX: Final = 6


class Hearing:
    """Ends of tasks, taken into a record."""

    def __init__(self, rollout: Rollout, now_ms: int, plan: Plan) -> None:
        self.rollout = rollout
        self.now_ms = now_ms
        self.plan = plan

    # Saying

    def note(self, node: str, text: str) -> None:
        """Write something into the audit log."""
        self.plan.notes.append(Note(self.now_ms, BY, node, text))

    def alarm(self, kind: str, node: str, text: str) -> None:
        """Tell a human, and note it."""
        rollout = self.rollout
        self.note(node, text)
        self.plan.alarms.append(Alarm(kind, rollout.name, node, rollout.document.owner, text))

    def move(self, name: str, node: Node, phase: Phase, text: str) -> None:
        """A node is somewhere else from now on, without a task."""
        node.phase, node.task, node.since_ms = phase, 0, self.now_ms
        node.why = text.encode()[:WHY_BYTES_MAX].decode(errors="ignore")
        if phase is not Phase.FAILED:
            node.due_ms = 0
        if text:
            self.note(name, text)

    def pause(self, why: str) -> None:
        """Begin nothing more until an operator resumes."""
        self.rollout.state, self.rollout.why = State.PAUSED, why
        self.alarm(alarms.PAUSED, "", f"paused: {why}")

    def _later_ms(self, times: int) -> int:
        wait_ms: int = self.rollout.document.queue.retry_ms << min(times, _DOUBLINGS_MAX)
        return self.now_ms + wait_ms

    # Hearing

    def hear(self, name: str, node: Node, end: End, may_execute: bool) -> None:
        """The task of a node has ended."""
        if node.phase is Phase.PRE_CHECK:
            self._pre_checked(name, node, end, may_execute)
        elif node.phase is Phase.EXECUTE:
            self._executed(name, node, end)
        elif node.phase is Phase.POST_CHECK:
            self._post_checked(name, node, end)
        elif node.phase is Phase.UNKNOWN:
            self._looked_at(name, node, end)
        else:
            # Cleared meanwhile by an operator: what its task came to changes nothing.
            node.task = 0

    def _pre_checked(self, name: str, node: Node, end: End, may_execute: bool) -> None:
        if end.kind is EndKind.VERDICT and end.verdict == GO:
            if may_execute:
                self.move(name, node, Phase.EXECUTE, "passed its pre-check")
            else:
                self.move(name, node, Phase.PENDING, "passed its pre-check, and is held up")
            return
        self.move(name, node, Phase.PENDING, f"is put back: {end.why or end.verdict}")
        node.due_ms = self._later_ms(0)
        refused = end.kind is EndKind.VERDICT and end.verdict == REFUSED
        if refused and self.rollout.state is State.RUNNING:
            self.pause(f"{name}: {end.why}")

    def _executed(self, name: str, node: Node, end: End) -> None:
        queue = self.rollout.document.queue
        if end.kind is EndKind.VERDICT and end.verdict != REFUSED:
            node.checks = 0
            self.move(name, node, Phase.POST_CHECK, "was done")
        elif end.kind is EndKind.UNBEGUN:
            # After an earlier try it is not proven healthy, though this one did not begin.
            phase = Phase.FAILED if node.tries else Phase.PENDING
            self.move(name, node, phase, f"was not begun: {end.why}")
            node.again, node.due_ms = Phase.EXECUTE, self._later_ms(0)
        elif end.kind is EndKind.LOST:
            node.tries += 1
            node.checks, node.again = 0, Phase.EXECUTE
            self.move(name, node, Phase.UNKNOWN, f"is unknown: {end.why}")
            self.alarm(alarms.UNKNOWN, name, "nobody knows how far its action came")
        else:
            node.tries += 1
            if node.tries > queue.retry_count:
                self._die(name, node, f"its action failed {node.tries} times: {end.why}")
                return
            self.move(name, node, Phase.FAILED, f"its action failed: {end.why}")
            node.again, node.due_ms = Phase.EXECUTE, self._later_ms(node.tries - 1)

    def _post_checked(self, name: str, node: Node, end: End) -> None:
        rollout = self.rollout
        if end.kind is EndKind.VERDICT and end.verdict == HEALTHY:
            self._done(name, node, "is healthy: done")
            return
        if end.kind in (EndKind.LOST, EndKind.UNBEGUN):
            self._not_proven(name, node, end)
            return
        node.checks += 1
        why = end.why or end.verdict
        if node.checks > rollout.document.queue.retry_count:
            self._die(name, node, f"its post-check failed {node.checks} times: {why}")
        else:
            self.move(name, node, Phase.FAILED, f"its post-check failed: {why}")
            node.again = Phase.POST_CHECK
            wait_ms = max(rollout.document.queue.breaker_ms, rollout.document.queue.retry_ms)
            node.due_ms = self.now_ms + wait_ms
        self._break(name)

    def _not_proven(self, name: str, node: Node, end: End) -> None:
        """The action was done, and nobody came to look: its agent may be starting."""
        node.checks += 1
        if node.checks <= self.rollout.document.queue.retry_count:
            self.move(name, node, Phase.POST_CHECK, f"is to be checked again: {end.why}")
            node.due_ms = self._later_ms(node.checks - 1)
            return
        node.checks, node.again = 0, Phase.POST_CHECK
        self.move(name, node, Phase.UNKNOWN, f"is unknown: {end.why}")
        self.alarm(alarms.UNKNOWN, name, "its action was done, and its agent does not check it")

    def _looked_at(self, name: str, node: Node, end: End) -> None:
        """Another node looked at one that was unknown."""
        node.task = 0
        if end.kind is not EndKind.VERDICT:
            node.checks += 1
            node.due_ms = self._later_ms(0)
        elif end.verdict == HEALTHY:
            self.found_healthy(name, node, "another node found it healthy")
        elif end.verdict in (CANNOT, REFUSED):
            node.due_ms = NEVER_MS
            self.alarm(alarms.UNKNOWN, name, f"an operator must clear it: {end.why}")
        else:
            node.checks += 1
            node.due_ms = self._later_ms(node.checks - 1)
            self.note(name, f"another node did not find it healthy: {end.why}")

    def found_healthy(self, name: str, node: Node, text: str) -> None:
        """A node that was unknown is healthy: if its action was done it is done, else it waits."""
        if node.again is Phase.POST_CHECK:
            self._done(name, node, f"{text}: done")
        elif node.tries > self.rollout.document.queue.retry_count:
            self.move(name, node, Phase.SKIPPED, f"{text}, and it was tried too often")
            self.alarm(alarms.DEAD, name, f"skipped after {node.tries} tries")
        else:
            self.move(name, node, Phase.PENDING, text)
            node.due_ms = self._later_ms(0)

    # What follows

    def _done(self, name: str, node: Node, text: str) -> None:
        rollout = self.rollout
        self.move(name, node, Phase.DONE, text)
        rollout.progress_ms, rollout.stale = self.now_ms, False
        breaker = rollout.breaker
        if breaker.gate is Gate.HALF_OPEN and breaker.probe == name:
            breaker.gate, breaker.failures, breaker.probe = Gate.CLOSED, 0, ""
            self.note("", "the breaker is closed")
        elif breaker.gate is Gate.CLOSED:
            breaker.failures = 0

    def _die(self, name: str, node: Node, text: str) -> None:
        self.move(name, node, Phase.DEAD, text)
        self.alarm(alarms.DEAD, name, "it is a dead letter: an operator must clear it")

    def _break(self, name: str) -> None:
        breaker, queue = self.rollout.breaker, self.rollout.document.queue
        breaker.failures += 1
        if breaker.gate is Gate.HALF_OPEN or breaker.failures >= queue.breaker_failures:
            breaker.gate, breaker.probe = Gate.OPEN, ""
            breaker.until_ms = self.now_ms + queue.breaker_ms
            text = f"the breaker is open: {breaker.failures} post-checks failed, last of {name}"
            self.alarm(alarms.BREAKER, name, text)
