"""The changes of roll-outs that a `Broker` makes, which is one.

Invariants:
- A change is checked here, before it is logged: what the state machine cannot read is refused.
"""

import msgspec

from broker.answering import Answering
from broker.commands import Command
from broker.errors import InvalidTask
from broker.rollout_commands import (
    RolloutAnswer,
    RolloutChange,
    RolloutPut,
    RolloutRemove,
    decode_change,
    decode_rollout_answer,
    encode_row,
)


class RollingOut(Answering):
    """Roll-outs, as they are stored."""

    async def ask(self, command: Command) -> bytes:
        """Put any command into the log; its answer."""
        raise AssertionError("the broker says")

    async def put_rollout(self, change: RolloutChange, by: str = "") -> list[int]:
        """See `Calls`."""
        try:
            decode_change(encode_row(change))
        except (msgspec.MsgspecError, OverflowError, TypeError, ValueError) as error:
            raise InvalidTask(f"the roll-out cannot be stored: {error}") from error
        put = RolloutPut(change, by, self.term_without_lease.time.now_ms())
        return (await self._rollout_answer(put)).taken()

    async def remove_rollout(self, name: str, version: int) -> None:
        """See `Calls`."""
        again = True
        while again:
            remove = RolloutRemove(name, version, self.term_without_lease.time.now_ms())
            answer = await self._rollout_answer(remove)
            answer.taken()
            again = answer.again

    async def _rollout_answer(self, command: Command) -> RolloutAnswer:
        return decode_rollout_answer(await self.ask(command))
