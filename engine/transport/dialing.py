"""A transport that finds bookies by their registrations, and dials them over any wire.

Invariants:
- At most one connection a bookie at a time, and one dial; whoever asks meanwhile shares it.
- A connection is not used any more once its bookie is registered elsewhere; one that serves is not
  given up because the registration is gone, or because nobody can tell.
- A connection to another bookie than the one asked for is closed and never handed out.
- A connection that was made with a token of before is not used for what comes next; what is under
  way over it goes on.
- Dials of a bookie that could not be reached rest for a while, longer each time, with jitter; a new
  registration ends the rest.
- A bookie of this process is reached without a wire.
- What is known of registrations is asked for anew after every change; when the store cannot be
  reached, the last answer stands. Whoever has a connection that serves does not wait for it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.access.shown import ShownToken
from engine.errors import AccessRefused, BookieUnavailable, EngineError, MetadataUnavailable
from engine.metadata.bookies import Bookies, Registration
from engine.ports.clock import Clock
from engine.transport.contract import Bookie
from engine.transport.framed_bookie import FramedBookie
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.security import Security
from engine.transport.shortcut import shortcut_to

Dial = Callable[[Registration], Awaitable[Bookie]]


@dataclass(frozen=True, slots=True)
class DialingSettings:
    """How bookies are dialled. Times in milliseconds.

    `connect_timeout_ms` bounds one dial, the wire's own deadline aside. After a failed one a bookie
    rests for `redial_first_ms`, then twice as long each time, up to `redial_max_ms`.
    """

    connect_timeout_ms: int = 5_000
    redial_first_ms: int = 10
    redial_max_ms: int = 1_000

    def __post_init__(self) -> None:
        assert 0 < self.redial_first_ms <= self.redial_max_ms
        assert self.connect_timeout_ms > 0


@runtime_checkable
class Ending(Protocol):
    """A bookie behind a connection that may be lost."""

    @property
    def gone(self) -> bool:
        """Whether nothing can be had through this object any more: dial again."""
        ...

    async def close(self) -> None:
        """End the connection; pending replies become UNAVAILABLE."""
        ...


@dataclass(slots=True)
class _Known:
    """A connected bookie, the registration that it was dialled by, and the token that it saw."""

    registration: Registration
    bookie: Bookie
    token: str
    ending: Ending | None
    """The same bookie, if it is `Ending`. Checking a protocol takes too long for each call."""

    @property
    def gone(self) -> bool:
        return self.ending is not None and self.ending.gone


@dataclass(slots=True)
class _Rest:
    """Until when, and after which registration, a bookie is left alone."""

    until_s: float
    pause_ms: int
    registration: Registration
    reason: BookieUnavailable


class DialingTransport:
    """A `Transport` over registrations; `dial` makes a connection to a registered bookie.

    A bookie that `dial` gives may be `Ending`: then it is dialled again once it is gone, and closed
    when it is not needed any more. `dial` shows `token`, if there is one.
    """

    def __init__(
        self,
        bookies: Bookies,
        *,
        dial: Dial,
        clock: Clock,
        rng: random.Random,
        settings: DialingSettings | None = None,
        token: ShownToken | None = None,
    ) -> None:
        self._bookies = bookies
        self._dial = dial
        self._token = token
        self._clock = clock
        self._rng = rng
        self._settings = settings or DialingSettings()
        self._local: dict[str, Bookie] = {}
        self._known: dict[str, _Known] = {}
        self._retired: dict[str, Bookie] = {}
        self._dials: dict[str, asyncio.Task[Bookie]] = {}
        self._rests: dict[str, _Rest] = {}
        self._registered: dict[str, Registration] = {}
        self._stale = True
        self._changes = 0
        self._asked_s = clock.monotonic()
        self._looking: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def add_local(self, bookie: Bookie) -> None:
        """Reach a bookie of this process directly, from now on."""
        assert bookie.bookie_id not in self._local, bookie.bookie_id
        self._local[bookie.bookie_id] = bookie

    def remove_local(self, bookie_id: str) -> None:
        """The bookie has stopped here. It may be unknown."""
        self._local.pop(bookie_id, None)

    async def connect(self, bookie_id: str) -> Bookie:
        """A connection to a registered bookie; shared, cheap to ask for again.

        Raises `BookieUnavailable`, and of it `AccessRefused`.
        """
        if self._closed:
            raise BookieUnavailable("the transport is closed")
        local = self._local.get(bookie_id)
        if local is not None:
            return local
        known = self._serving(bookie_id)
        if known is not None:
            return known
        registration = await self._look_up(bookie_id)
        # Somebody else may have dialled meanwhile.
        known = self._serving(bookie_id)
        if known is not None:
            return known
        dial = self._dials.get(bookie_id)
        if dial is None:
            self._check_rest(registration)
            dial = asyncio.ensure_future(self._reach(registration))
            self._dials[bookie_id] = dial
            dial.add_done_callback(lambda done: self._dialled(bookie_id, done))
        try:
            return await asyncio.shield(dial)
        except asyncio.CancelledError:
            if dial.cancelled():
                raise BookieUnavailable("the transport is closed") from None
            raise

    async def close(self) -> None:
        """Close every connection; pending replies become UNAVAILABLE. May be called twice."""
        self._closed = True
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        tasks: list[asyncio.Task[Bookie] | asyncio.Task[None]] = list(self._dials.values())
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bookie_id in list(self._known):
            self._drop(bookie_id)
        for bookie in self._retired.values():
            self._end(bookie)
        await asyncio.gather(*self._closing, return_exceptions=True)

    # Registrations

    def _serving(self, bookie_id: str) -> Bookie | None:
        """A connection that may be used; asks for registrations anew, if there were changes."""
        known = self._known.get(bookie_id)
        if known is None:
            return None
        if self._stale and self._looking is None:
            self._begin_look()
        registration = self._registered.get(bookie_id, known.registration)
        if known.gone or not _same_place(known.registration, registration):
            self._drop(bookie_id)
            return None
        if known.token != self._shown:
            self._retire(bookie_id)
            return None
        return known.bookie

    async def _look_up(self, bookie_id: str) -> Registration:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                before = -1
                # A look that began before the last change has not seen it.
                while before != self._changes and self._is_to_ask(bookie_id, before):
                    before = self._changes
                    await self._look()
        except (MetadataUnavailable, TimeoutError) as error:
            if bookie_id not in self._registered:
                raise BookieUnavailable(f"where bookie {bookie_id} is cannot be asked") from error
        registration = self._registered.get(bookie_id)
        if registration is None:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered")
        return registration

    def _is_to_ask(self, bookie_id: str, before: int) -> bool:
        if self._stale or before >= 0 or bookie_id in self._registered:
            return self._stale
        # A watch tells of what comes; asking without one is for what it has not told yet.
        since_s = self._clock.monotonic() - self._asked_s
        return since_s * 1000 >= self._settings.redial_max_ms

    async def _look(self) -> None:
        looking = self._looking or self._begin_look()
        try:
            await asyncio.shield(looking)
        except asyncio.CancelledError:
            if looking.cancelled():
                raise BookieUnavailable("the transport is closed") from None
            raise

    def _begin_look(self) -> "asyncio.Task[None]":
        assert self._looking is None
        self._looking = asyncio.ensure_future(self._ask())
        self._looking.add_done_callback(self._looked)
        return self._looking

    async def _ask(self) -> None:
        if self._unwatch is None:
            self._unwatch = self._bookies.watch(self._changed)
        before = self._changes
        self._asked_s = self._clock.monotonic()
        registered = await self._bookies.available()
        self._registered = registered
        self._stale = before != self._changes

    def _looked(self, done: "asyncio.Task[None]") -> None:
        self._looking = None
        if not done.cancelled():
            # Those who wait for it have been told.
            done.exception()

    def _changed(self) -> None:
        self._changes += 1
        self._stale = True

    # Connections

    async def _reach(self, registration: Registration) -> Bookie:
        bookie_id, token = registration.bookie_id, self._shown
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                bookie = await self._dial(registration)
        except TimeoutError as error:
            late = BookieUnavailable(f"bookie {bookie_id} could not be reached in time")
            raise self._rest(registration, late) from error
        except BookieUnavailable as error:
            self._rest(registration, error)
            raise
        except EngineError as error:
            unfit = BookieUnavailable(f"bookie {bookie_id} cannot be used: {error}")
            raise self._rest(registration, unfit) from error
        if bookie.bookie_id != bookie_id:
            self._end(bookie)
            other = f"at the address of bookie {bookie_id} answers {bookie.bookie_id}"
            raise self._rest(registration, BookieUnavailable(other))
        self._rests.pop(bookie_id, None)
        ending = bookie if isinstance(bookie, Ending) else None
        self._known[bookie_id] = _Known(registration, bookie, token, ending)
        return bookie

    def _dialled(self, bookie_id: str, done: "asyncio.Task[Bookie]") -> None:
        self._dials.pop(bookie_id, None)
        if not done.cancelled():
            done.exception()

    def _rest(self, registration: Registration, reason: BookieUnavailable) -> BookieUnavailable:
        """Leave a bookie alone for a while; returns the reason."""
        rest = self._rests.get(registration.bookie_id)
        known = rest is not None and _same_place(rest.registration, registration)
        pause_ms = rest.pause_ms if rest is not None and known else self._settings.redial_first_ms
        until_s = self._clock.monotonic() + pause_ms * self._rng.uniform(0.5, 1.0) / 1000
        longer_ms = min(2 * pause_ms, self._settings.redial_max_ms)
        self._rests[registration.bookie_id] = _Rest(until_s, longer_ms, registration, reason)
        return reason

    def _check_rest(self, registration: Registration) -> None:
        rest = self._rests.get(registration.bookie_id)
        if rest is None or not _same_place(rest.registration, registration):
            return
        if self._clock.monotonic() < rest.until_s:
            kind = AccessRefused if isinstance(rest.reason, AccessRefused) else BookieUnavailable
            raise kind(
                f"bookie {registration.bookie_id} could not be reached a moment ago: {rest.reason}"
            ) from rest.reason

    @property
    def _shown(self) -> str:
        return "" if self._token is None else self._token.text

    def _retire(self, bookie_id: str) -> None:
        """Let a connection end what is under way; it is closed when the next one retires."""
        before = self._retired.pop(bookie_id, None)
        if before is not None:
            self._end(before)
        self._retired[bookie_id] = self._known.pop(bookie_id).bookie

    def _drop(self, bookie_id: str) -> None:
        known = self._known.pop(bookie_id, None)
        if known is not None:
            self._end(known.bookie)

    def _end(self, bookie: Bookie) -> None:
        if isinstance(bookie, Ending):
            closing = asyncio.ensure_future(bookie.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def framed_dial(security: Security, clock: Clock, settings: FramedSettings | None = None) -> Dial:
    """Dials the framed wire of a bookie: one connection each, by the shortcut if there is one.

    Raises `InvalidRequest` for security that cannot be used.
    """
    bounds, encrypted = settings or FramedSettings(), security.client_context() is not None
    near_s = bounds.connect_timeout_ms / 4_000

    async def dial(registration: Registration) -> Bookie:
        address, bookie_id = registration.address, registration.bookie_id
        if not address:
            raise BookieUnavailable(f"bookie {bookie_id} has no framed wire")
        near = None if encrypted or security.on else shortcut_to(address)
        if near is not None:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(near_s):
                    return await reach(near, bookie_id)
        return await reach(address, bookie_id)

    async def reach(address: str, bookie_id: str) -> Bookie:
        connection = await ClientConnection.dial(address, {}, clock, bounds, security.at_bookies())
        try:
            return await FramedBookie.reach(connection, bookie_id)
        except BaseException:
            connection.close()
            raise

    return dial


def _same_place(one: Registration, other: Registration) -> bool:
    """Whether two registrations are of one start of a bookie; writable or not does not matter."""
    return (one.boot, one.address, one.grpc) == (other.boot, other.address, other.grpc)
