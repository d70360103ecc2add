"""Sessions of gRPC clients: named by secret tokens, alive as long as they are heard of.

Invariants:
- A session of which nothing was heard for its lease ends, and its transaction is rolled back; a
  call that runs is being heard of.
- Nobody guesses a token: it is 16 random bytes.
"""

import asyncio
import random
from typing import Final

from engine.ports.clock import Clock
from herd.errors import InterfaceError, SessionLost
from herd.wire import messages
from herd.wire.guest import Guest
from herd.wire.messages import Failed, Opened
from herd.wire.service import HerdService

LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000
_TOKEN_BITS: Final = 128
_SWEEP_S: Final = 0.25


class Lease:
    """One session: a guest of its own."""

    def __init__(self, guest: Guest, number: int, lease_ms: int, now_s: float) -> None:
        self.guest = guest
        self.number = number
        self.lease_ms = lease_ms
        self.heard_s = now_s
        self.running = 0


class Leases:
    """All sessions of one server. On the event loop."""

    def __init__(self, service: HerdService, clock: Clock, rng: random.Random) -> None:
        self.service = service
        self.others = Guest(service)
        """For calls that need no session."""
        self._clock = clock
        self._rng = rng
        self._leases: dict[bytes, Lease] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self, call: messages.Open, lease_ms: int) -> tuple[bytes, int] | Failed:
        """Open a session: its token and its lease, or why not. Raises `InterfaceError`."""
        if lease_ms and not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
            raise InterfaceError(f"a lease has {LEASE_MS_MIN} to {LEASE_MS_MAX} ms")
        guest = Guest(self.service)
        answer = await guest.ask(call)
        if not isinstance(answer, Opened):
            await guest.close()
            assert isinstance(answer, Failed)
            return answer
        token = self._rng.getrandbits(_TOKEN_BITS).to_bytes(_TOKEN_BITS // 8)
        granted_ms = lease_ms or self.service.settings.lease_ms
        self._leases[token] = Lease(guest, answer.session, granted_ms, self._clock.monotonic())
        if self._sweeping is None:
            self._sweep()
        return token, granted_ms

    def find(self, token: bytes) -> Lease:
        """The session of a token, which is heard of by this. Raises `SessionLost`."""
        lease = self._leases.get(token)
        if lease is None:
            raise SessionLost("there is no such session, or no more", hint="open another")
        lease.heard_s = self._clock.monotonic()
        return lease

    async def ask(self, lease: Lease, call: messages.Call) -> messages.Answer:
        """The answer to a call of a session, which does not end meanwhile."""
        lease.running += 1
        try:
            return await lease.guest.ask(call)
        finally:
            lease.running -= 1
            lease.heard_s = self._clock.monotonic()

    async def end(self, token: bytes) -> None:
        """End a session. It may be unknown."""
        lease = self._leases.pop(token, None)
        if lease is not None:
            await lease.guest.close()

    async def close(self) -> None:
        """End all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for token in list(self._leases):
            await self.end(token)
        if self._ending:
            await asyncio.wait(self._ending)
        await self.others.close()

    def _sweep(self) -> None:
        loop, now_s = asyncio.get_running_loop(), self._clock.monotonic()
        for token, lease in list(self._leases.items()):
            if not lease.running and now_s - lease.heard_s > lease.lease_ms / 1000:
                del self._leases[token]
                task = loop.create_task(lease.guest.close())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if self._leases else None
