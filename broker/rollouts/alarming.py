"""How alarms come to humans: a hook that the operator wires up.

Invariants:
- An alarm is in the log whatever becomes of the hook, and no hook holds a roll-out up.
- So many wait for a slow hook at most; of more the oldest are dropped, which is in the log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import msgspec

from broker.rollouts.facts import ENDED, Alarm

Hook = Callable[[Alarm], Awaitable[None]]
WAITING_MAX: Final = 1_000
HOOK_TIMEOUT_S: Final = 30.0
_logger = logging.getLogger(__name__)


class CommandHook:
    """Runs a command for each alarm, which is on its standard input as JSON."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    async def __call__(self, alarm: Alarm) -> None:
        """Run it. Raises `OSError` where it cannot be run or says that it failed."""
        null = asyncio.subprocess.DEVNULL
        running = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=null, stderr=null
        )
        try:
            await running.communicate(msgspec.json.encode(asdict(alarm)) + b"\n")
        finally:
            if running.returncode is None:
                with suppress(ProcessLookupError):
                    running.kill()
                await running.wait()
        if running.returncode:
            raise OSError(f"{self._command[0]} ended with {running.returncode}")


class Alarms:
    """Tells alarms one after the other, as long as it runs."""

    def __init__(self, hook: Hook | None = None) -> None:
        self._hook = hook
        self._waiting: deque[Alarm] = deque()
        self._telling: asyncio.Task[None] | None = None

    def tell(self, alarm: Alarm) -> None:
        """Write it into the log, and call the hook soon."""
        log = _logger.info if alarm.kind == ENDED else _logger.warning
        node = f" node {alarm.node}:" if alarm.node else ""
        name = f"roll-out {alarm.rollout}" if alarm.rollout else "roll-outs"
        log("%s (%s, of %s):%s %s", name, alarm.kind, alarm.owner or "nobody", node, alarm.text)
        if self._hook is None:
            return
        if len(self._waiting) >= WAITING_MAX:
            _logger.warning("an alarm was not told, the hook is too slow: %s", self._waiting[0])
            self._waiting.popleft()
        self._waiting.append(alarm)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(self._hook), name="alarms")

    async def _tell(self, hook: Hook) -> None:
        while self._waiting:
            alarm = self._waiting.popleft()
            try:
                async with asyncio.timeout(HOOK_TIMEOUT_S):
                    await hook(alarm)
            except Exception as error:
                _logger.warning("the hook for alarms failed (%r): %s", error, alarm)

    async def close(self) -> None:
        """Tell what waits, for its time at most."""
        if self._telling is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(HOOK_TIMEOUT_S):
                    await asyncio.gather(self._telling, return_exceptions=True)
