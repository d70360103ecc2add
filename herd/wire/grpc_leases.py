"""Sessions of gRPC clients: named by secret tokens, alive as long as they are heard of.

Invariants:
- A session of which nothing was heard for its lease ends, and its transaction is rolled back; a
  call that runs is being heard of.
- Nobody guesses a token: it is 16 random bytes. A user's session is no other user's.
- A session may do what its caller may at each call.
"""

import asyncio
import random
from typing import Final

from engine.access.door import CALLER
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
        self._others = Guest(service)
        self._clock = clock
        self._rng = rng
        self._leases: dict[bytes, Lease] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self, call: messages.Open, lease_ms: int) -> tuple[bytes, int] | Failed:
        """Open a session: its token and its lease, or why not. Raises `InterfaceError`."""
        if lease_ms and not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
            raise InterfaceError(f"a lease has {LEASE_MS_MIN} to {LEASE_MS_MAX} ms")
        guest = Guest(self.service, CALLER.get())
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
        lease, caller = self._leases.get(token), CALLER.get()
        if lease is None or lease.guest.caller.principal.name != caller.principal.name:
            raise SessionLost("there is no such session, or no more", hint="open another")
        lease.guest.caller = caller
        lease.heard_s = self._clock.monotonic()
        return lease

    async def other(self, call: messages.Call) -> messages.Answer:
        """The answer to a call that needs no session."""
        caller = CALLER.get()
        guest = Guest(self.service, caller) if caller.passing else self._others
        guest.caller = caller
        return await guest.ask(call)

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
        try:
            lease = self.find(token)
        except SessionLost:
            return
        del self._leases[token]
        await lease.guest.close()

    async def close(self) -> None:
        """End all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await lease.guest.close()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._others.close()

    def _sweep(self) -> None:
        loop, now_s = asyncio.get_running_loop(), self._clock.monotonic()
        for token, lease in list(self._leases.items()):
            if not lease.running and now_s - lease.heard_s > lease.lease_ms / 1000:
                del self._leases[token]
                task = loop.create_task(lease.guest.close())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if self._leases else None
