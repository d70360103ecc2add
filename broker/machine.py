"""The broker's state machine: commands in, rows and answers out.

Invariants:
- `apply` looks at the command and the rows, at nothing else, and always ends with an answer.
- Bytes that are no command are answered and change nothing.
- A listener is told after the fact, in order, and changes nothing here.
- An exception in a listener does not fail the machine. The listener gets no more changes, and
  `on_listener_failure` is called.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from broker import (
    assigning,
    commands,
    finishing,
    graphs,
    interventions,
    pools,
    purging,
    rollout_commands,
    rollout_rows,
    schedules_rows,
    sessions,
    settings_rows,
    submitting,
    timekeeping,
    transactions,
)
from broker.applying import Change, Listener, Step
from broker.commands import UNKNOWN_COMMAND, decode_command
from engine.log.position import Position
from engine.replica.contract import Rows

_Apply = Callable[[Step, Any], bytes]
_logger = logging.getLogger(__name__)

_APPLY: Final[dict[type, _Apply]] = {
    commands.Submit: submitting.submit,
    commands.Begin: transactions.begin,
    commands.Commit: transactions.commit,
    commands.Rollback: transactions.rollback,
    commands.ExpireTransactions: transactions.expire_transactions,
    commands.Assign: assigning.assign,
    commands.Finish: finishing.finish,
    commands.Due: interventions.due,
    commands.Expire: interventions.expire_some,
    commands.Cancel: interventions.cancel,
    commands.Retry: interventions.retry,
    commands.Delete: interventions.delete,
    commands.Session: sessions.open_session,
    commands.Lost: sessions.lose,
    commands.Forget: sessions.forget,
    commands.Purge: purging.purge,
    commands.Set: settings_rows.change,
    commands.ScheduleSet: schedules_rows.define,
    commands.ScheduleDelete: schedules_rows.remove,
    commands.SchedulePause: schedules_rows.pause,
    commands.Fire: schedules_rows.fire,
    commands.Settle: transactions.go_on,
    commands.PoolPut: pools.put,
    commands.PoolDelete: pools.delete,
    rollout_commands.RolloutPut: rollout_rows.put,
    rollout_commands.RolloutRemove: rollout_rows.remove,
    commands.SetTime: timekeeping.set_time,
    commands.RestartWaits: timekeeping.restart_waits,
    commands.CorrectDue: schedules_rows.correct_due,
}


class BrokerMachine:
    """The state machine of one broker replica."""

    level: Final = commands.LEVEL

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.on_listener_failure: Callable[[], None] = _nobody
        """Called after a listener has raised, and so no longer knows the rows."""

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do a command."""
        try:
            wanted = decode_command(command)
        except (msgspec.MsgspecError, RecursionError):
            return UNKNOWN_COMMAND
        listener = self.listener
        step = Step(rows, wanted.now_ms, listener is not None, getattr(wanted, "drawn", 0))
        answer = _APPLY[type(wanted)](step, wanted)
        if step.settling:
            graphs.settle(step)
        step.close()
        if listener is not None and step.changes:
            self._tell(listener, step.changes)
        return answer or graphs.left(step)

    def _tell(self, listener: Listener, changes: list[Change]) -> None:
        try:
            for change in changes:
                listener(change)
        except Exception:
            # The rows are right. Only the listener's view of them is wrong, so it is rebuilt.
            _logger.exception("the leader's memory no longer matches its log; rebuilding it")
            self.listener = None
            self.on_listener_failure()


def _nobody() -> None:
    """The default callback: do nothing."""
