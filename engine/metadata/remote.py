"""A metadata store reached through a framed connection: one session a connection.

Invariants:
- The session ends with its connection, and its ephemeral keys with it. The next connection is a
  new session; ephemeral keys are not made again by themselves, and who watches the session is told.
- A read waits for the answers to writes of the same key, or of keys under it, whose callers were
  cancelled, as long as the connection of those writes lasts. If one takes longer than the request
  timeout, the read raises `MetadataUnavailable`.
- A call whose connection is lost raises `MetadataUnavailable`: a write may have happened. A call
  that the server does not allow raises `AccessRefused`.
- A store that does not give up leaves a server that hangs: if a call had no answer when its caller
  was cancelled, the server has to answer a ping within the time that connecting may take.
- Watches outlive a connection. Each fires once after a new session begins, since anything may have
  changed in between.
- One store only ever reaches one cluster.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    FolderMismatch,
    FormatTooNew,
    FrameInvalid,
    InvalidRequest,
    MetadataUnavailable,
    Overloaded,
)
from engine.metadata import remote_messages as messages
from engine.metadata.contract import Page, Versioned
from engine.metadata.losses import Losses
from engine.metadata.session import AbandonedWrites
from engine.metadata.tree import check_key, check_value, numbers_of
from engine.ports.clock import Clock
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import CLOCK_MINOR, PAGES_MINOR, PING_MINOR, Frame, Kind
from engine.transport.messages import decode, encode
from engine.transport.security import NO_SECURITY, Security

_NEVER_BY_RETRY: Final = (FolderMismatch, FormatTooNew, InvalidRequest)


class RemoteStore:
    """A `MetadataStore` behind a connection. Made by `RemoteStore.open`.

    `find()` tells the address of the store, anew for each connection; it raises `BookieUnavailable`
    while there is none. With `redial=False` a lost session stays lost. `cluster_id` is the
    cluster's, if it is known before. Over TCP, `security` has this side's credentials and what it
    requires of the server; with `by_read_token`, each connection shows the read token that is
    current then. Unless it `gives_up`, the store leaves a server that can never serve it, and tries
    the next one that `find` names. `welcomed(options)` is called with the options of each WELCOME.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[str]],
        *,
        clock: Clock,
        rng: random.Random,
        options: dict[str, Any] | None = None,
        settings: FramedSettings | None = None,
        redial: bool = True,
        cluster_id: str = "",
        security: Security = NO_SECURITY,
        by_read_token: bool = False,
        gives_up: bool = True,
        welcomed: Callable[[dict[str, Any]], None] = lambda _options: None,
    ) -> None:
        self._find = find
        self._clock = clock
        self._rng = rng
        self._options = dict(options or {}) | {"session": True}
        self._settings = settings or FramedSettings()
        self._redial = redial
        self._loop = asyncio.get_running_loop()
        self._cluster_id = cluster_id
        self._security = security
        self._by_read_token = by_read_token
        self._gives_up = gives_up
        self._welcomed = welcomed
        self._connection: ClientConnection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._watches: dict[int, tuple[str, Callable[[], None]]] = {}
        self._due: set[int] = set()
        self._losses = Losses()
        self._abandoned = AbandonedWrites[Frame]()
        self._next_watch = 1
        self._closed = False

    @classmethod
    async def open(
        cls,
        find: Callable[[], Awaitable[str]],
        *,
        clock: Clock,
        rng: random.Random,
        options: dict[str, Any] | None = None,
        settings: FramedSettings | None = None,
        redial: bool = True,
        cluster_id: str = "",
        security: Security = NO_SECURITY,
        by_read_token: bool = False,
        gives_up: bool = True,
        welcomed: Callable[[dict[str, Any]], None] = lambda _options: None,
    ) -> "RemoteStore":
        """Connect.

        Raises `BookieUnavailable`, `FormatTooNew`, `InvalidRequest`, and `FolderMismatch` for a
        store of another cluster.
        """
        store = cls(
            find,
            clock=clock,
            rng=rng,
            options=options,
            settings=settings,
            redial=redial,
            cluster_id=cluster_id,
            security=security,
            by_read_token=by_read_token,
            gives_up=gives_up,
            welcomed=welcomed,
        )
        await store._connect()
        return store

    @property
    def cluster_id(self) -> str:
        """The random id of the cluster."""
        return self._cluster_id

    @property
    def connection(self) -> ClientConnection | None:
        """The connection of the session, None while there is none."""
        return self._connection

    async def get(self, key: str) -> Versioned | None:
        """The value, or None if the key is positively absent."""
        await self._settled(key)
        answer = await self._call(messages.Get(key))
        if answer.value is None:
            return None
        return Versioned(answer.value, _number(answer))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a key; returns its version."""
        check_key(key)
        check_value(value)
        return _number(await self._call(messages.Create(key, value, ephemeral), writes=key))

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version."""
        check_key(key)
        check_value(value)
        return _number(await self._call(messages.Set(key, value, version), writes=key))

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key; an absent one is a success."""
        check_key(key)
        await self._call(messages.Delete(key, version), writes=key)

    async def children(self, prefix: str) -> list[str]:
        """The names directly under `prefix`, sorted."""
        names: list[str] = []
        await self._settled(f"{prefix.rstrip('/')}/")
        while True:
            above = names[-1] if names else ""
            answer = await self._call(messages.Children(prefix, above))
            names += answer.names or []
            if not answer.more:
                return names

    async def page(self, prefix: str, above: int = -1) -> Page:
        """The next numbers directly under `prefix` that are greater than `above`."""
        await self._settled(f"{prefix.rstrip('/')}/")
        connection = self._connection
        if connection is not None and connection.welcome.minor < PAGES_MINOR:
            numbers = numbers_of(await self.children(prefix))
            return Page(sorted(number for number in numbers if number > above), more=False)
        answer = await self._call(messages.Page(prefix, above))
        return Page(answer.numbers or [], answer.more)

    async def next_id(self, counter: str) -> int:
        """A number never given before."""
        check_key(counter)
        return _number(await self._call(messages.NextId(counter)))

    async def server_ms(self) -> int | None:
        """The wall clock of the store's server; None if this server is too old to be asked, or if
        no other machine can be."""
        connection = self._connection
        if connection is not None and connection.welcome.minor < CLOCK_MINOR:
            return None
        return (await self._call(messages.ServerTime())).number

    async def sync(self) -> None:
        """After it returns, reads see every write that had returned anywhere before."""
        await self._call(messages.Sync())

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the key or the names under it may have changed."""
        number = self._next_watch
        self._next_watch += 1
        self._watches[number] = (key, changed)
        if self._connection is not None:
            self._send_watch(self._connection, number, key)

        def end() -> None:
            if self._watches.pop(number, None) is not None and self._connection is not None:
                self._connection.post(Kind.UNWATCH, b"", request=number)

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` each time the connection, and the session with it, is lost."""
        return self._losses.watch(lost)

    async def close(self) -> None:
        """End the session. May be called twice."""
        self._closed = True
        self._watches.clear()
        for task in (self._reconnecting, self._pinging):
            if task is not None:
                task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.over:
            ended: asyncio.Future[None] = self._loop.create_future()
            connection.when_lost(lambda: ended.set_result(None))
            connection.close()
            await ended

    async def _settled(self, path: str) -> None:
        await self._abandoned.settled(path, self._settings.request_timeout_ms / 1000)

    async def _call(self, call: messages.Call, *, writes: str = "") -> messages.Answer:
        connection = self._connection
        if connection is None or connection.over:
            raise MetadataUnavailable("the session with the metadata store has ended")
        try:
            if writes:
                frame = await connection.call_through(
                    Kind.METADATA, encode(call), partial(self._abandoned.add, writes)
                )
            else:
                frame = await connection.call(Kind.METADATA, encode(call))
            return decode(frame.head, messages.Answer)
        except asyncio.CancelledError:
            self._check(connection)
            raise
        except AccessRefused:
            raise
        except (BookieUnavailable, Overloaded) as error:
            raise MetadataUnavailable(f"the metadata store cannot be reached: {error}") from error
        except FrameInvalid as error:
            connection.abort(error)
            raise MetadataUnavailable(str(error)) from error

    def _check(self, connection: ClientConnection) -> None:
        """Leave the server if it hangs."""
        answers = connection.welcome.minor >= PING_MINOR and not connection.over
        if answers and self._pinging is None and not (self._gives_up or self._closed):
            self._pinging = self._loop.create_task(self._ping(connection))

    async def _ping(self, connection: ClientConnection) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                await connection.call(Kind.METADATA, encode(messages.Ping()))
        except TimeoutError:
            connection.abort(BookieUnavailable(f"{connection.address} does not answer"))
        except EngineError:
            # This is an answer, too, or the connection is already lost.
            pass
        finally:
            self._pinging = None

    async def _connect(self) -> None:
        connection = await ClientConnection.dial(
            await self._find(),
            self._options,
            self._clock,
            self._settings,
            self._security.at_bookies() if self._by_read_token else self._security,
        )
        cluster_id = str(connection.welcome.options.get("cluster", ""))
        if self._closed or self._cluster_id not in ("", cluster_id):
            connection.close()
            raise FolderMismatch(f"the store is of cluster {cluster_id}, not {self._cluster_id}")
        self._cluster_id = cluster_id
        self._welcomed(connection.welcome.options)
        self._connection = connection
        connection.when_changed(self._on_changed)
        connection.when_lost(self._on_lost)
        for number, (key, _) in self._watches.items():
            self._send_watch(connection, number, key)
            self._on_changed(number)

    def _on_lost(self) -> None:
        if not self._closed and self._connection is not None:
            self._losses.tell(self._loop)
        self._connection = None
        if self._redial and not self._closed and self._reconnecting is None:
            self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Dial until a session is there again, with growing pauses and jitter."""
        pause_ms = self._settings.redial_first_ms
        try:
            while not self._closed:
                try:
                    await self._connect()
                    return
                except EngineError as error:
                    if self._gives_up and isinstance(error, _NEVER_BY_RETRY):
                        return
                    await asyncio.sleep(pause_ms * self._rng.uniform(0.5, 1.0) / 1000)
                    pause_ms = min(2 * pause_ms, self._settings.redial_max_ms)
        finally:
            self._reconnecting = None
            if self._connection is not None and self._connection.over:
                self._on_lost()

    def _send_watch(self, connection: ClientConnection, number: int, key: str) -> None:
        connection.post(Kind.WATCH, encode(messages.Watch(key)), request=number)

    def _on_changed(self, number: int) -> None:
        """Merge the notices of one turn into one call."""
        if number not in self._due:
            self._due.add(number)
            self._loop.call_soon(self._fire, number)

    def _fire(self, number: int) -> None:
        self._due.discard(number)
        watch = self._watches.get(number)
        if watch is not None:
            watch[1]()


def _number(answer: messages.Answer) -> int:
    if answer.number is None:
        raise MetadataUnavailable("the metadata store answered without a number")
    return answer.number
