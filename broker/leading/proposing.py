"""Proposes the leader's commands: those of one turn of the event loop are gathered into one.

Invariants:
- The submits, assignments and completions of a turn become one command each, for all callers.
- Callers are answered when their command is applied, in the order of their calls.
- Commands of a kind keep their order. If the log is overloaded, they wait here, within limits.
- A batch that is atomic, belongs to a transaction, or has tasks with parents in it, is a command by
  itself.
- A callback that raises does not keep other callbacks from being called.
- A caller who is told that nothing was submitted may submit again. For a batch in parts, this is
  said only if it is true of every part.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from broker.batching import BATCH_BYTES_MAX, EncodedSubmit
from broker.commands import ITEMS_MAX, Command, Refusal, decode_items, encode, level_of
from broker.errors import (
    BrokerError,
    BrokerUnavailable,
    CommandUnknown,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TooLarge,
)
from broker.leading.clock import BrokerTime
from broker.replicating import Replicated
from broker.translating import after_logging, translated
from engine.errors import EngineError
from engine.errors import Overloaded as LogFull
from engine.limits import MIB
from engine.replica.confirmed_reads import note_write

_ROOM_PAUSE_S: Final = 0.005
GATHERED_BYTES_MAX: Final = 64 * MIB

Answers = list[int | Refusal]
Heard = Callable[[bytes | BrokerError], None]
_logger = logging.getLogger(__name__)


class _Waiter:
    """Receives the outcome of one command."""

    __slots__ = ("_heard", "_open", "_tell")

    def __init__(self, heard: Heard, tell: Callable[[Heard, bytes | BrokerError], None]) -> None:
        self._heard = heard
        self._tell = tell
        self._open = True

    def done(self) -> bool:
        """Whether the outcome is known."""
        return not self._open

    def set_result(self, result: bytes, /) -> None:
        """The command is applied."""
        self._open = False
        self._tell(self._heard, result)

    def set_exception(self, error: EngineError, /) -> None:
        """Its outcome is not known, or it was never sent."""
        self._open = False
        self._tell(self._heard, after_logging(error))


class Proposing:
    """Commands of one term."""

    def __init__(self, replica: Replicated, time: BrokerTime, wrong: Callable[[str], None]) -> None:
        """`wrong` is called if a callback for an outcome fails."""
        self.time = time
        self._wrong = wrong
        self._sent = 0
        """How many commands were proposed and are not answered yet."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._replica = replica
        self._term = replica.term
        self._loop = asyncio.get_running_loop()
        self._gathered: list[msgspec.Raw] = []
        self._gathered_bytes = 0
        self._asked: list[tuple[int, asyncio.Future[Answers]]] = []
        self._late: list[tuple[bytes, int, Heard]] = []
        self._late_bytes = 0
        self._ended: BrokerError | None = None

    def end(self, error: BrokerError) -> None:
        """Propose nothing more. Commands that wait for the log fail with this error."""
        if self._ended is None:
            self._ended = error
            late, self._late = self._late, []
            for _, _, heard in late:
                heard(error)
            self.flush()

    async def quiet(self) -> None:
        """Wait until every command that was sent is answered."""
        await self._quiet.wait()

    @property
    def idle(self) -> bool:
        """Whether no command is under way."""
        return not (self._sent or self._late or self._gathered)

    def send(self, command: Command, heard: Heard) -> None:
        """Propose a command of the leader itself. `heard` is called with the outcome.

        It may be called at once, and must not propose anything in that call.
        """
        self._send(encode(command), heard, level_of(command))

    @property
    def level(self) -> int:
        """The newest level of commands that every replica supports."""
        return self._replica.command_level

    def ask(self, command: Command) -> Awaitable[bytes]:
        """Propose a command; await its answer. Raises `BrokerError`."""
        return self.ask_encoded(encode(command), level_of(command))

    def ask_encoded(self, command: bytes, level: int = 1) -> Awaitable[bytes]:
        """Like `ask`, for an encoded command."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self._late_bytes > GATHERED_BYTES_MAX:
            raise Overloaded(f"{self._late_bytes} bytes of commands wait for room in the log")
        # Another caller's turn may propose it.
        note_write()
        self._send(command, lambda told: _tell(future, told), level)
        return future

    def submit(self, specs: Sequence[bytes]) -> "asyncio.Future[Answers]":
        """Submit tasks that are encoded and checked. Those of one turn share a command.

        Raises `Overloaded`: then nothing was submitted.
        """
        self._check_room(0)
        return self._gather(specs)

    async def submit_parts(self, parts: Sequence[Sequence[bytes]]) -> Answers:
        """Like `submit`, for a batch that needs several commands. It may be submitted in part.

        Raises `TooLarge`, `Overloaded`, `NotLeader` if nothing was submitted, and `OutcomeUnknown`
        if some parts were, or may have been.
        """
        size_bytes = sum(sum(map(len, part)) for part in parts)
        if size_bytes > GATHERED_BYTES_MAX:
            raise TooLarge(f"the batch has {size_bytes:,} bytes (limit {GATHERED_BYTES_MAX:,})")
        self._check_room(size_bytes)
        asked = [self._gather(part) for part in parts]
        told = await asyncio.gather(*asked, return_exceptions=True)
        failed = [one for one in told if isinstance(one, BaseException)]
        answers = [answer for one in told if isinstance(one, list) for answer in one]
        if not failed:
            return answers
        if len(failed) == len(parts):
            if all(isinstance(one, BrokerUnavailable) for one in failed):
                raise failed[0]
        count = sum(map(len, parts))
        known = f"{len(answers):,} of {count:,} tasks were answered, the others may be submitted"
        raise OutcomeUnknown(f"{known}: {failed[0]}") from failed[0]

    def _check_room(self, size_bytes: int) -> None:
        waiting = self._late_bytes + self._gathered_bytes
        if waiting > GATHERED_BYTES_MAX or (waiting and waiting + size_bytes > GATHERED_BYTES_MAX):
            raise Overloaded(f"{self._late_bytes} bytes of commands wait for room in the log")

    def _gather(self, specs: Sequence[bytes]) -> "asyncio.Future[Answers]":
        assert 0 < len(specs) <= ITEMS_MAX
        size_bytes = sum(map(len, specs))
        full = self._gathered_bytes + size_bytes > BATCH_BYTES_MAX
        if full or len(self._gathered) + len(specs) > ITEMS_MAX:
            self.flush()
        # The flush may run for another caller.
        note_write()
        if not self._gathered:
            self._loop.call_soon(self.flush)
        future: asyncio.Future[Answers] = self._loop.create_future()
        self._gathered += map(msgspec.Raw, specs)
        self._gathered_bytes += size_bytes
        self._asked.append((len(specs), future))
        return future

    def flush(self) -> None:
        """Propose the tasks that were submitted in this turn."""
        specs, self._gathered = self._gathered, []
        asked, self._asked = self._asked, []
        self._gathered_bytes = 0
        if specs:
            command = encode(EncodedSubmit(specs, self.time.now_ms()))
            self._send(command, lambda told: _share(asked, told))

    def _send(self, command: bytes, heard: Heard, level: int = 1) -> None:
        if self._ended is not None:
            heard(self._ended)
        elif self._late:
            self._wait(command, level, heard)
        elif not self._proposed(command, level, heard):
            self._wait(command, level, heard)
            self._loop.call_later(_ROOM_PAUSE_S, self._again)

    def _proposed(self, command: bytes, level: int, heard: Heard) -> bool:
        """Whether the log accepted it. Other errors go to `heard`."""
        if self._replica.term != self._term:
            heard(NotLeader("the leader's term is over", leader=self._replica.leader))
            return True
        try:
            self._replica.propose_for(command, _Waiter(heard, self._answer), level)
        except LogFull:
            return False
        except EngineError as error:
            heard(translated(error))
            return True
        self._sent += 1
        self._quiet.clear()
        return True

    def _answer(self, heard: Heard, told: bytes | BrokerError) -> None:
        self._sent -= 1
        if not self._sent:
            self._quiet.set()
        try:
            heard(told)
        except Exception:
            _logger.exception("a callback for an answer of the log failed")
            self._wrong("a callback for an answer of the log failed")

    def _wait(self, command: bytes, level: int, heard: Heard) -> None:
        self._late.append((command, level, heard))
        self._late_bytes += len(command)

    def _again(self) -> None:
        late, self._late = self._late, []
        for number, (command, level, heard) in enumerate(late):
            if not self._proposed(command, level, heard):
                self._late = late[number:] + self._late
                self._loop.call_later(_ROOM_PAUSE_S, self._again)
                break
            self._late_bytes -= len(command)


def _tell(future: "asyncio.Future[bytes]", told: bytes | BrokerError) -> None:
    if future.done():
        return
    if isinstance(told, BrokerError):
        future.set_exception(told)
    else:
        future.set_result(told)


def _share(asked: list[tuple[int, "asyncio.Future[Answers]"]], told: bytes | BrokerError) -> None:
    """Give each caller of a turn its part of the answer."""
    answers: Answers = []
    if not isinstance(told, BrokerError):
        try:
            answers = decode_items(told)
        except msgspec.MsgspecError:
            told = CommandUnknown(f"tasks were not submitted: {told!r:.100}")
    start = 0
    for count, future in asked:
        if not future.done():
            if isinstance(told, BrokerError):
                future.set_exception(told)
            else:
                future.set_result(answers[start : start + count])
        start += count
