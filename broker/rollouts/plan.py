"""How a roll-out goes on: a pure function of its record, what has been seen, and the time.

Invariants:
- A step begins only while fewer nodes than the limit are not proven healthy, itself not counted.
- Nothing begins while the breaker is open, and one thing only while it is half open; what began
  before is finished and proven in any state.
- A node that nobody has a word of keeps counting until another node's check or an operator clears
  it, however long its lease is over.
- The same record, facts and time give the same plan.
"""

from collections.abc import Iterator
from typing import Final

from broker.rollouts import facts as alarms
from broker.rollouts.document import CHECK_NODE, EXECUTE, POST_CHECK, PRE_CHECK, wrong_nodes
from broker.rollouts.facts import Facts, Plan
from broker.rollouts.hearing import Hearing
from broker.rollouts.record import (
    BUSY,
    COUNTED,
    ENDED,
    SETTLED,
    Gate,
    Node,
    Phase,
    Rollout,
    State,
)
from broker.rollouts.steps import step_spec

_PARTS: Final = {
    Phase.PRE_CHECK: PRE_CHECK,
    Phase.EXECUTE: EXECUTE,
    Phase.POST_CHECK: POST_CHECK,
}
_STEPS_MAX: Final = 1_000
_STEPS_BYTES_MAX: Final = 512 * 1024


def advance(rollout: Rollout, facts: Facts, now_ms: int) -> Plan:
    """Take a roll-out as far as it goes now; the record is changed in place."""
    plan = Plan()
    if rollout.state not in ENDED:
        _Advance(rollout, facts, now_ms, plan).go()
    return plan


class _Advance(Hearing):
    """One look at a roll-out."""

    def __init__(self, rollout: Rollout, facts: Facts, now_ms: int, plan: Plan) -> None:
        super().__init__(rollout, now_ms, plan)
        self._facts = facts
        self._bytes = 0
        limit = rollout.document.limit
        self._limit = limit if facts.limit is None else min(limit, facts.limit)

    def go(self) -> None:
        rollout, facts = self.rollout, self._facts
        for name, node in rollout.nodes.items():
            if node.task in facts.ends:
                self.hear(name, node, facts.ends[node.task], self._may_execute(name))
            elif node.task in facts.unbegun and node.phase is not Phase.POST_CHECK:
                if self.now_ms - node.since_ms > rollout.document.queue.start_ms:
                    self.plan.cancels.append(node.task)
        self._discover()
        self._half_open()
        self._begin()
        self._look_at_unknown()
        self._end()
        self._alarm_stale()

    def _may_execute(self, name: str) -> bool:
        """Whether a node whose pre-check passed goes on; it counts already."""
        rollout, breaker = self.rollout, self.rollout.breaker
        probe = breaker.gate is Gate.HALF_OPEN and breaker.probe == name
        if rollout.state is not State.RUNNING or not (probe or breaker.gate is Gate.CLOSED):
            return False
        return rollout.counted <= self._limit

    # Discovery

    def _discover(self) -> None:
        rollout, facts = self.rollout, self._facts
        if facts.discovered is None:
            if facts.undiscovered and facts.undiscovered != rollout.undiscovered:
                rollout.undiscovered = facts.undiscovered
                self.alarm(alarms.DISCOVERY, "", f"nothing begins: {facts.undiscovered}")
            return
        rollout.undiscovered = ""
        if rollout.state is State.STARTING:
            self._start(list(facts.discovered))
        elif rollout.state is not State.CANCELLING:
            self._compare(facts.discovered)

    def _start(self, names: list[str]) -> None:
        rollout = self.rollout
        wrong = wrong_nodes(rollout.document, names)
        if wrong:
            rollout.state, rollout.why = State.CANCELLED, f"it cannot begin: {wrong}"
            return
        rollout.nodes = {name: Node(since_ms=self.now_ms) for name in names}
        rollout.state, rollout.progress_ms = State.RUNNING, self.now_ms
        self.note("", f"begins over {len(names)} nodes, {rollout.document.limit} at a time")

    def _compare(self, discovered: tuple[str, ...]) -> None:
        """Nodes come and go; where that leaves too few, everything stops."""
        rollout, there = self.rollout, set(discovered)
        changed = False
        for name, node in rollout.nodes.items():
            if name in there:
                if node.phase is Phase.GONE:
                    self.move(name, node, node.again, "is there again")
                    changed = True
            elif node.phase in SETTLED or node.phase is Phase.PENDING:
                node.again = node.phase
                self.move(name, node, Phase.GONE, "is not discovered any more")
                changed = True
        for name in discovered:
            if name not in rollout.nodes:
                rollout.nodes[name] = Node(since_ms=self.now_ms)
                self.note(name, "was discovered")
                changed = True
        if changed and rollout.state is State.RUNNING:
            present = [name for name in rollout.nodes if name in there]
            limit, wrong = rollout.document.limit, ""
            if len(present) <= limit < len(rollout.nodes):
                wrong = f"limit {limit} of {len(present)} nodes leaves none alone"
            elif rollout.counted > self._limit:
                wrong = f"{rollout.counted} nodes are gone or not proven healthy"
            if wrong:
                self.pause(f"the nodes have changed: {wrong}")

    # The breaker

    def _half_open(self) -> None:
        breaker = self.rollout.breaker
        if breaker.gate is Gate.OPEN and breaker.until_ms <= self.now_ms:
            breaker.gate, breaker.probe = Gate.HALF_OPEN, ""
            self.note("", "the breaker is half open: one probe")
        if breaker.gate is Gate.HALF_OPEN and breaker.probe:
            probe = self.rollout.nodes.get(breaker.probe)
            if probe is None or probe.phase not in BUSY:
                breaker.probe = ""

    def _admits(self, name: str) -> bool:
        breaker = self.rollout.breaker
        if breaker.gate is Gate.HALF_OPEN and not breaker.probe:
            breaker.probe = name
            return True
        return breaker.gate is Gate.CLOSED

    # What begins

    def _begin(self) -> None:
        rollout = self.rollout
        for name, node in rollout.nodes.items():
            if node.phase in BUSY and not node.task:
                self._submit(name, node)
        if rollout.state is State.STARTING:
            return
        for name, node in self._failed():
            proof = node.again is Phase.POST_CHECK or rollout.state is State.CANCELLING
            if (proof or rollout.state is State.RUNNING) and self._admits(name):
                part = Phase.POST_CHECK if proof else Phase.EXECUTE
                self.move(name, node, part, f"is tried again: {_PARTS[part]}")
                self._submit(name, node)
        if rollout.state is State.RUNNING and self._facts.discovered is not None:
            for name, node in self._pending():
                if rollout.counted >= self._limit or not self._admits(name):
                    break
                self.move(name, node, Phase.PRE_CHECK, "")
                self._submit(name, node)

    def _failed(self) -> Iterator[tuple[str, Node]]:
        """Those to be proven come first: no better probe than what failed."""
        found = [
            (node.again is not Phase.POST_CHECK, node.due_ms, name)
            for name, node in self.rollout.nodes.items()
            if node.phase is Phase.FAILED and self._ready(name, node)
        ]
        for _, _, name in sorted(found):
            yield name, self.rollout.nodes[name]

    def _pending(self) -> Iterator[tuple[str, Node]]:
        """Who has waited for longest comes first, so that everybody has a turn."""
        nodes = self.rollout.nodes
        found = [
            (node.due_ms, number, name)
            for number, (name, node) in enumerate(nodes.items())
            if node.phase is Phase.PENDING and self._ready(name, node)
        ]
        for _, _, name in sorted(found):
            yield name, nodes[name]

    def _ready(self, name: str, node: Node) -> bool:
        facts = self._facts
        return node.due_ms <= self.now_ms and name in facts.agents and name not in facts.busy

    def _submit(self, name: str, node: Node) -> None:
        if node.due_ms > self.now_ms or self._full:
            return
        if name in self._facts.busy:
            if node.phase is not Phase.POST_CHECK:
                again = node.again if node.tries else Phase.PENDING
                self.move(name, node, Phase.FAILED if node.tries else Phase.PENDING, "is busy")
                node.again, node.due_ms = again, self.now_ms + self.rollout.document.queue.retry_ms
            return
        self._send(_PARTS[node.phase], name, node, name)

    @property
    def _full(self) -> bool:
        """Whether no more tasks go with this change; what is left goes with the next one."""
        return len(self.plan.specs) >= _STEPS_MAX or self._bytes >= _STEPS_BYTES_MAX

    def _send(self, part: str, name: str, node: Node, agent: str) -> None:
        assert not node.task and node.phase in COUNTED
        spec = step_spec(self.rollout, part, name, agent, self.now_ms)
        self.plan.specs.append(spec)
        self._bytes += len(spec.payload)
        node.task, node.since_ms = -len(self.plan.specs), self.now_ms
        self.note(name, f"{part} is sent to {agent}, try {node.tries + 1}")

    def _look_at_unknown(self) -> None:
        """Ask other nodes how those are of whom nothing is known."""
        facts, nodes = self._facts, self.rollout.nodes
        for name, node in nodes.items():
            if node.phase is not Phase.UNKNOWN or node.task or node.due_ms > self.now_ms:
                continue
            others = [each for each in nodes if each != name and each in facts.agents]
            healthy = [each for each in others if nodes[each].phase not in COUNTED] or others
            if healthy and not self._full:
                self._send(CHECK_NODE, name, node, healthy[node.checks % len(healthy)])

    # The end

    def _end(self) -> None:
        rollout = self.rollout
        left = [node for node in rollout.nodes.values() if node.phase not in SETTLED]
        if rollout.state is State.CANCELLING:
            if not rollout.counted:
                rollout.state = State.CANCELLED
        elif rollout.nodes and not left:
            rollout.state = State.FINISHED
        elif rollout.state is State.RUNNING and all(node.phase is Phase.GONE for node in left):
            self.pause(f"{len(left)} nodes are gone: resume to end without them")
        if rollout.state in ENDED:
            skipped, done = rollout.count(Phase.SKIPPED), rollout.count(Phase.DONE)
            text = f"{rollout.state.name.lower()}: {done} done, {skipped} skipped"
            rollout.why = rollout.why or text
            self.alarm(alarms.ENDED, "", rollout.why)

    def _alarm_stale(self) -> None:
        rollout = self.rollout
        late_ms = self.now_ms - rollout.progress_ms
        active = rollout.state not in ENDED
        if active and not rollout.stale and late_ms > rollout.document.queue.stale_ms:
            rollout.stale = True
            counted = rollout.counted
            why = f" ({rollout.why})" if rollout.why else ""
            self.alarm(
                alarms.STALE,
                "",
                f"no node was done for {late_ms // 1000} s: {rollout.state.name.lower()}{why}, "
                f"{counted} of at most {self._limit} nodes are not proven healthy",
            )
