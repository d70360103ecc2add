"""The rules that replicas must never break, checked on every apply, answer and look.

Invariants checked (a breach raises `Violation` where it happens):
- At one position of the log every replica applies the same command, with the same result.
- No command is applied at two positions, and no replica applies backwards.
- Every acknowledged command was applied with the same result, and one epoch has one leader at most.
- Replicas that applied the log to the same position have the same hash.
- All answers of each register can be explained by one order of the calls.
"""

from engine.log.position import START, Position
from tests.linearizability import Operation, check
from tests.simulation.acknowledged import Acknowledged
from tests.simulation.oracles import Violation


class ReplicaOracle:
    """All that is known from outside about the state machine of one run."""

    def __init__(self) -> None:
        self.applied: dict[int, tuple[Position, bytes]] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.acknowledgements = Acknowledged()
        self.history: list[tuple[Operation, int | None]] = []
        self._commands: dict[Position, int] = {}
        self._cursors: dict[str, Position] = {}
        self._leaders: dict[int, str] = {}
        self._hashes: dict[Position, tuple[int, str]] = {}

    def on_applied(self, process: str, position: Position, command: int, result: bytes) -> None:
        """A replica's process has applied a command."""
        before = self._cursors.get(process, START)
        if position <= before:
            raise Violation(f"{process} applies {position} after {before}")
        self._cursors[process] = position
        known = self._commands.setdefault(position, command)
        if known != command:
            raise Violation(f"{process} applies command {command} at {position}, not {known}")
        where, answer = self.applied.setdefault(command, (position, result))
        if where != position:
            raise Violation(f"{process} applies command {command} at {position} and at {where}")
        if answer != result:
            raise Violation(f"{process} answers command {command} with {result!r}, not {answer!r}")

    def on_answered(self, process: str, epoch: int, command: int, result: bytes) -> None:
        """A proposal made in an epoch was answered by a replica's process."""
        leader = self._leaders.setdefault(epoch, process)
        if leader != process:
            raise Violation(f"{process} and {leader} both acknowledge in epoch {epoch}")
        if command not in self.applied:
            raise Violation(f"{process} acknowledges command {command}, which nobody applied")
        if self.applied[command][1] != result:
            raise Violation(f"{process} acknowledges command {command} with {result!r}")
        self.acknowledged[command] = result

    def on_hash(self, process: str, position: Position, value: int) -> None:
        """A replica's process has this hash at a position."""
        known, other = self._hashes.setdefault(position, (value, process))
        if known != value:
            raise Violation(f"{process} has another hash at {position} than {other}")

    def on_call(self, operation: Operation, command: int | None = None) -> None:
        """A client's call has ended; `command` is the number of what it proposed."""
        self.history.append((operation, command))

    def judge_history(self) -> None:
        """All calls so far, register by register. What nobody ever applied never happened."""
        happened = [
            operation
            for operation, command in self.history
            if not operation.unknown or command in self.applied
        ]
        witness = check(happened)
        if witness is not None:
            raise Violation(str(witness))
