"""How long the leader waits for a silent worker.

A lease is measured by the leader's monotonic clock and is not logged: a new leader grants each
worker a whole lease. Only its end is logged: a command says that the session is lost.

Why no task runs on two workers: a leader acknowledges a heartbeat only if no other leader's term
had begun when the heartbeat was sent. It knows that in one of two ways. Its replica's lease holds,
or the log has accepted an entry that was proposed after the heartbeat arrived: a new leader's term
begins only after it has closed the old log to such entries. So tasks keep running while the
metadata store is away. Opening a session is such an entry, so welcomes need no lease either. Nor
does sending a task: its assignment is in the log, so the next leader knows who may run it.

The worker counts from the moment before it sent the heartbeat. When half its lease has passed since
then, it ends its processes and begins nothing more. A new leader grants every session a whole lease
from the beginning of its own term, which is later. So it gives a task to another worker only after
the first worker has ended it. This holds whatever the ratio of the workers' lease to the replicas'
lease. The other half of the lease covers clocks that run at different speeds and the time that
ending takes. The longest lease that a worker may be using is logged with its session. If a new
leader has another setting, the longer of the two applies.

Invariants:
- A session expires only after a whole lease without a message from its worker.
- If the event loop was busy and the check is late, messages may be waiting unread. So all leases
  are extended by the delay.
"""

from typing import Final

from engine.ports.clock import Clock

LOOKS_A_LEASE: Final = 8


class Leases:
    """The leases of the workers of one term."""

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._clock = clock
        self._ends_s: dict[str, float] = {}
        self._looked_s = clock.monotonic()

    @property
    def look_s(self) -> float:
        """How often `expired` should be asked, in seconds."""
        return self.lease_ms / 1000 / LOOKS_A_LEASE

    def grant(self, worker_id: str, lease_ms: int = 0) -> None:
        """Start a whole lease: the worker sent a message. `lease_ms`: one that it may be using."""
        lease_s = max(self.lease_ms, lease_ms) / 1000
        self._ends_s[worker_id] = self._clock.monotonic() + lease_s

    def left_ms(self, worker_id: str) -> int:
        """For how long a silent worker is still waited for; 0: its lease has expired."""
        left_s = self._ends_s.get(worker_id, 0.0) - self._clock.monotonic()
        return max(0, int(left_s * 1000))

    def end(self, worker_id: str) -> None:
        """Do not wait for this worker any more."""
        self._ends_s.pop(worker_id, None)

    def expired(self) -> list[str]:
        """The workers whose lease has expired. Each is returned once."""
        now_s = self._clock.monotonic()
        late_s = now_s - self._looked_s - 2 * self.look_s
        self._looked_s = now_s
        if late_s > 0:
            for worker_id in self._ends_s:
                self._ends_s[worker_id] += late_s
        found = [worker_id for worker_id, end_s in self._ends_s.items() if end_s <= now_s]
        for worker_id in found:
            del self._ends_s[worker_id]
        return found
