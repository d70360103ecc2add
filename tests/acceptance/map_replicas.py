"""The example's replicas as processes, and clients that write down what they were told.

Invariants:
- Every process is a child of this one and is stopped by its process id.
- A call that was repeated carries its session and sequence, so that its outcome is one.
- What may have been done and was not answered is written down as of unknown outcome.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.replicated_map import Line, MapConnection, Reply
from tests.acceptance.machines import Process, free_port
from tests.linearizability import Kind, Operation

ASK_S: Final = 2.0
PATIENCE_S: Final = 12.0
KEYS: Final = 6
_SESSION_MS: Final = 3_000
_PAUSE_S: Final = 0.02
_THINK_S: Final = 0.01
_NOT_DONE: Final = ("NotLeader", "Overloaded")


class MapProcess(Process):
    """One replica of the map."""

    def __init__(self, number: int, folder: Path, url: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            folder / f"map-{number}.log",
            *("examples.replicated_map", "--url", url, "--listen", self.address),
            *("--data", str(folder / f"map-{number}"), "--session-ms", str(_SESSION_MS)),
        )

    async def ask(self, line: Line) -> Reply | None:
        """Ask on a fresh connection; None if it does not answer."""
        try:
            async with asyncio.timeout(ASK_S):
                connection = await MapConnection.open(self.address)
                try:
                    return await connection.ask(line)
                finally:
                    connection.close()
        except (OSError, EOFError, TimeoutError):
            return None

    async def status(self) -> dict[str, str]:
        """What it says of itself; empty if it does not answer."""
        reply = None if self.paused or self._process is None else await self.ask(Line("status"))
        return reply.value if reply is not None and isinstance(reply.value, dict) else {}


class Recorder:
    """What all clients were told."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self.first_write_after: dict[float, float] = {}
        self.ending = False

    def write(self, operation: Operation) -> None:
        """A call has ended."""
        self.history.append(operation)
        if operation.unknown or operation.kind is Kind.READ:
            return
        for since, first in self.first_write_after.items():
            if operation.called >= since and math.isinf(first):
                self.first_write_after[since] = operation.returned


class MapClient:
    """Calls one after the other, each at some replica, until an answer comes."""

    def __init__(self, name: str, replicas: Sequence[MapProcess], recorder: Recorder) -> None:
        self._name = name
        self._replicas = replicas
        self._recorder = recorder
        self._rng = random.Random(name)
        self._at = 0
        self._connection: MapConnection | None = None
        self._session: tuple[int, int] | None = None
        self._sequence = 0
        self._seen: dict[str, str | None] = {}

    async def run(self) -> None:
        """Call until the recorder says that it is over."""
        while not self._recorder.ending:
            key = f"key {self._rng.randrange(KEYS)}"
            draw = self._rng.random()
            if draw < 0.4:
                await self._read(key)
            else:
                await self._write(key, conditional=draw > 0.8)
            await asyncio.sleep(_THINK_S * self._rng.random())
        self._hang_up()

    async def _read(self, key: str) -> None:
        called = self._now()
        reply, _ = await self._try(Line("get", key))
        if reply is not None and not reply.error:
            value = reply.value if isinstance(reply.value, str) else None
            self._seen[key] = value
            self._recorder.write(Operation(self._name, key, Kind.READ, called, self._now(), value))

    async def _write(self, key: str, *, conditional: bool) -> None:
        if self._session is None:
            reply, _ = await self._try(Line("session"))
            if reply is None or not isinstance(reply.value, tuple):
                return
            self._session = reply.value
        self._sequence += 1
        number = self._sequence
        value, expected = f"{self._name} {number}", self._seen.get(key)
        do = "compare and set" if conditional else "put"
        # One call at a time: whatever came before it has been answered, or will never be asked.
        line = Line(do, key, value, expected, self._session, number, number)
        called, end_s = self._now(), self._now() + PATIENCE_S
        unsure, kind = False, Kind.COMPARE_AND_SET if conditional else Kind.WRITE
        while self._now() < end_s:
            reply, sent = await self._try(line)
            if reply is not None and not reply.error:
                done = not conditional or reply.value is True
                if done:
                    self._seen[key] = value
                self._recorder.write(
                    Operation(self._name, key, kind, called, self._now(), value, expected, done)
                )
                return
            unsure = unsure or (sent and (reply is None or reply.error not in _NOT_DONE))
        if unsure:
            self._recorder.write(
                Operation(self._name, key, kind, called, math.inf, value, expected)
            )

    async def _try(self, line: Line) -> tuple[Reply | None, bool]:
        """Ask once; the reply if there was one, and whether the line may have arrived."""
        sent = False
        try:
            async with asyncio.timeout(ASK_S):
                if self._connection is None:
                    address = self._replicas[self._at].address
                    self._connection = await MapConnection.open(address)
                sent = True
                reply = await self._connection.ask(line)
        except (OSError, EOFError, TimeoutError):
            await self._elsewhere()
            return None, sent
        if reply.error:
            assert reply.error not in ("InvalidRequest", "RequestForgotten"), reply
            await self._elsewhere()
        return reply, sent

    async def _elsewhere(self) -> None:
        self._hang_up()
        self._at = self._rng.randrange(len(self._replicas))
        # Who leads is decided in other processes; nothing here tells of it.
        await asyncio.sleep(_PAUSE_S)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
