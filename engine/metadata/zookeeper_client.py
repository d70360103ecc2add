"""One session with ZooKeeper for the event loop: the only module that knows kazoo.

Invariants:
- kazoo's threads use nothing here but `loop.call_soon_threadsafe`, and record their last error; all
  other state belongs to the loop.
- What is on its way to the server is bounded in requests and in bytes; more has to wait.
- When the connection goes, everything on its way fails with `ConnectionLost`, whatever kazoo still
  knows of it: a write among it may have happened.
- The password is never logged: kazoo's log is kept above the level that shows requests.
- With TLS, nothing is sent before the server's certificate and name have been checked, against the
  given authorities only, as they were read last.
"""

import asyncio
import contextlib
import logging
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from engine.errors import (
    EngineError,
    InvalidRequest,
    KeyExists,
    MetadataUnavailable,
    NotFound,
    Unauthorized,
    VersionConflict,
)
from engine.extras import needing_cluster
from engine.metadata.contract import Versioned
from engine.metadata.zookeeper_paths import ancestors
from engine.metadata.zookeeper_settings import (
    PACKET_BYTES_MAX,
    PACKET_OVERHEAD_BYTES,
    ZooKeeperSettings,
)
from engine.transport.security import Security

_LOG: Final = logging.getLogger("engine.metadata.zookeeper")
_NOT_UNDERSTOOD: Final = ("Unhandled exception in connection loop", "Exception raised during deser")
_NO_ZOOKEEPER: Final = "what answers there is no ZooKeeper"
_GREETING_MS: Final = 2_000
_ATTEMPTS_MAX: Final = 4
_STEP_BYTES: Final = 96
"""What a step takes in a packet, beside its path and its value, at most."""
_OF_OTHERS: Final = (MetadataUnavailable,)
"""What the steps of a transaction raise that did not fail themselves."""


class ConnectionLost(MetadataUnavailable):
    """The connection went, or there was none. A read may be asked again once it is back."""


class Link(Enum):
    """What the client tells of its connection."""

    CONNECTED = "CONNECTED"
    SUSPENDED = "SUSPENDED"
    LOST = "LOST"


class Check(NamedTuple):
    """A step of a transaction: a node has this version, or nothing is done."""

    path: str
    version: int


class Create(NamedTuple):
    """A step of a transaction: make a node; those above it must exist."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    """A step of a transaction: replace a node's value, and count its version up."""

    path: str
    value: bytes = b""


class Delete(NamedTuple):
    """A step of a transaction: remove a node; -1 means in any version."""

    path: str
    version: int = -1


Step = Check | Create | Set | Delete


class ZooKeeperClient:
    """Calls of one kazoo client as coroutines, errors as the engine's.

    `on_link` is called on the loop at each change of the connection, `on_event` with the path of
    each node whose watch fired. Errors raised by calls: `NotFound` for an absent node, `KeyExists`,
    `VersionConflict`, `InvalidRequest`, `Unauthorized`, `ConnectionLost`, `MetadataUnavailable`.
    """

    def __init__(
        self,
        hosts: str,
        settings: ZooKeeperSettings,
        on_link: Callable[[Link], None],
        on_event: Callable[[str], None],
    ) -> None:
        self.connected = False
        self._settings = settings
        self._on_link = on_link
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._sent: dict[asyncio.Future[Any], int] = {}
        self._sent_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._words = _LastWords()
        self._kazoo = _new_kazoo(hosts, settings, self._words)
        self._kazoo.add_listener(self._link_in_thread)

    def start(self) -> None:
        """Begin to connect; `on_link` tells when there is a connection."""
        self._kazoo.start_async()

    async def close(self) -> None:
        """End the session, within the time for it. What is on its way fails."""
        if self._closed:
            return
        self._closed = True
        self.connected = False
        self._fail_sent("the session with ZooKeeper was closed")
        stopped: asyncio.Future[None] = self._loop.create_future()
        # Stopping waits for kazoo's threads; it has to happen beside the loop, on one of its own.
        self._kazoo.handler.spawn(self._stop_in_thread, stopped)
        await asyncio.wait([stopped], timeout=self._settings.close_timeout_ms / 1000)

    @property
    def last_words(self) -> str:
        """What kazoo said last, for whoever cannot connect; "" if it said nothing."""
        return self._words.said

    @property
    def session(self) -> tuple[int, bytes] | None:
        """The session's id and password, None without a connection."""
        session: tuple[int, bytes] | None = self._kazoo.client_id
        return session

    async def get(self, path: str) -> Versioned:
        """A node's value and version."""
        value, stat = await self._call(len(path), lambda kazoo: kazoo.get_async(path))
        return Versioned(value, stat.version)

    async def exists(self, path: str, *, watch: bool = False) -> bool:
        """Whether a node is there; with `watch` any change of that is told once."""
        watcher = self._event_in_thread if watch else None
        stat = await self._call(len(path), lambda kazoo: kazoo.exists_async(path, watcher))
        return stat is not None

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """The names under a node, in no order; with `watch` the next change of them is told."""
        watcher = self._event_in_thread if watch else None
        names: list[str] = await self._call(
            len(path), lambda kazoo: kazoo.get_children_async(path, watcher)
        )
        return names

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Make a node, and those above it that are missing."""
        size_bytes = self._size_of(path, value)

        def ask(kazoo: Any) -> Any:
            return kazoo.create_async(path, value, ephemeral=ephemeral)

        for attempt in range(_ATTEMPTS_MAX):
            try:
                await self._call(size_bytes, ask)
                return
            except NotFound:
                # An empty folder may be removed again before there is anything in it.
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
                await self.make_folders(ancestors(path))

    async def commit(self, steps: Sequence[Step]) -> None:
        """Do all steps in one transaction; if one fails, do nothing and raise its error."""
        size_bytes = sum(self._size_of(step.path, getattr(step, "value", b"")) for step in steps)
        if size_bytes + len(steps) * _STEP_BYTES > PACKET_BYTES_MAX:
            raise InvalidRequest(
                f"{steps[-1].path}: a transaction of {size_bytes} bytes is too large"
            )

        def ask(kazoo: Any) -> Any:
            transaction = kazoo.transaction()
            for step in steps:
                if isinstance(step, Check):
                    transaction.check(step.path, step.version)
                elif isinstance(step, Create):
                    transaction.create(step.path, step.value, ephemeral=step.ephemeral)
                elif isinstance(step, Set):
                    transaction.set_data(step.path, step.value)
                else:
                    transaction.delete(step.path, step.version)
            return transaction.commit_async()

        failed = [one for one in await self._call(size_bytes, ask) if isinstance(one, Exception)]
        if failed:
            raise next(
                (error for error in map(_translated, failed) if type(error) not in _OF_OTHERS),
                MetadataUnavailable("ZooKeeper rolled a transaction back"),
            )

    async def set(self, path: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version."""
        size_bytes = self._size_of(path, value)
        stat = await self._call(size_bytes, lambda kazoo: kazoo.set_async(path, value, version))
        new_version: int = stat.version
        return new_version

    async def touch(self, path: str) -> int:
        """Write an existing node. Returns the server's time of the write, in milliseconds."""
        stat = await self._call(len(path), lambda kazoo: kazoo.set_async(path, b"", -1))
        written_ms: int = stat.mtime
        return written_ms

    async def delete(self, path: str, version: int | None) -> None:
        """Remove a node, if `version` is given only that one."""
        wanted = -1 if version is None else version
        await self._call(len(path), lambda kazoo: kazoo.delete_async(path, wanted))

    async def sync(self, path: str) -> None:
        """Let the server that answers catch up with the leader."""
        await self._call(len(path), lambda kazoo: kazoo.sync_async(path))

    async def make_folders(self, paths: list[str]) -> None:
        """Make those of the nodes, the highest first, that are not there."""
        # Asked for first: who may not write above a chroot may still work inside it.
        present = await asyncio.gather(*map(self.exists, paths))
        for path, there in zip(paths, present, strict=True):
            if not there:
                with contextlib.suppress(KeyExists):
                    await self._call(len(path), partial(_create_folder, path))

    async def _call(self, size_bytes: int, start: Callable[[Any], Any]) -> Any:
        await self._room(size_bytes)
        answer: asyncio.Future[Any] = self._loop.create_future()
        try:
            asked = start(self._kazoo)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(str(error)) from error
        self._sent[answer] = size_bytes
        self._sent_bytes += size_bytes
        asked.rawlink(partial(self._answer_in_thread, answer))
        return await answer

    async def _room(self, size_bytes: int) -> None:
        """Return when the request may be sent. Raises `ConnectionLost`."""
        while True:
            if not self.connected:
                raise ConnectionLost("there is no connection to ZooKeeper")
            if not self._sent or (
                len(self._sent) < self._settings.requests_in_flight_max
                and self._sent_bytes + size_bytes <= self._settings.bytes_in_flight_max
            ):
                return
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()
                raise

    def _wake(self) -> None:
        """Let those who wait for room look again, in their order."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _size_of(self, path: str, value: bytes) -> int:
        size_bytes = len(value) + len(path.encode()) + len(self._settings.user.encode())
        if size_bytes + PACKET_OVERHEAD_BYTES > PACKET_BYTES_MAX:
            raise InvalidRequest(
                f"{path}: {len(value)} bytes do not fit in a ZooKeeper packet, "
                f"{PACKET_BYTES_MAX - PACKET_OVERHEAD_BYTES} with the path do"
            )
        return size_bytes

    def _settle(self, answer: "asyncio.Future[Any]", value: object, error: object) -> None:
        size_bytes = self._sent.pop(answer, None)
        if size_bytes is not None:
            self._sent_bytes -= size_bytes
            self._wake()
        if answer.done():
            return
        if isinstance(error, BaseException):
            answer.set_exception(_translated(error))
        else:
            answer.set_result(value)

    def _fail_sent(self, reason: str) -> None:
        sent, self._sent, self._sent_bytes = self._sent, {}, 0
        for answer in sent:
            if not answer.done():
                answer.set_exception(ConnectionLost(reason))
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _link_changed(self, link: Link) -> None:
        if self._closed:
            return
        if link is Link.CONNECTED:
            _LOG.info("connected to ZooKeeper")
        elif link is Link.LOST:
            _LOG.warning("ZooKeeper has ended the session: another one begins")
        else:
            _LOG.warning("the connection to ZooKeeper was lost: trying to connect again")
        self.connected = link is Link.CONNECTED
        if not self.connected:
            self._fail_sent("the connection to ZooKeeper was lost")
        self._on_link(link)

    # In kazoo's threads

    def _tell_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        # A loop that has ended has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _link_in_thread(self, state: str) -> None:
        self._tell_loop(self._link_changed, Link(str(state)))

    def _event_in_thread(self, event: Any) -> None:
        if event.path is not None:
            self._tell_loop(self._on_event, event.path)

    def _answer_in_thread(self, answer: "asyncio.Future[Any]", asked: Any) -> None:
        self._tell_loop(self._settle, answer, asked.value, asked.exception)

    def _stop_in_thread(self, stopped: "asyncio.Future[None]") -> None:
        try:
            self._kazoo.stop()
            self._kazoo.close()
        except Exception as error:
            # A server that never answers keeps the connection's thread a little longer; it is a
            # daemon, and the session ends by its own time.
            _LOG.info("the session with ZooKeeper did not end in time: %s", error)
        self._tell_loop(_set_done, stopped)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _create_folder(path: str, kazoo: Any) -> Any:
    return kazoo.create_async(path, b"")


class _LastWords(logging.Filter):
    """Keeps what kazoo said last, and lets only errors through, each a line without a traceback.

    Each failed attempt to connect is a warning there; here each loss is one, and each return.
    """

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Judge what a thread of kazoo wants to say."""
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said = f"{said}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        not_understood = said.startswith(_NOT_UNDERSTOOD)
        self.said = _NO_ZOOKEEPER if not_understood else " ".join(said.split())
        record.msg, record.args, record.exc_info = self.said, (), None
        return record.levelno >= logging.ERROR and not not_understood


def _new_kazoo(hosts: str, settings: ZooKeeperSettings, words: _LastWords) -> Any:
    with needing_cluster():
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.security import make_digest_acl

    # One of its own for each client: what one of them said last is no other's business.
    logger = logging.Logger(f"{_LOG.name}.kazoo", logging.WARNING)
    logger.parent = _LOG
    logger.addFilter(words)
    options: dict[str, Any] = {}
    if settings.user:
        options["auth_data"] = [("digest", f"{settings.user}:{settings.password}")]
        options["default_acl"] = [make_digest_acl(settings.user, settings.password, all=True)]
    retry = {
        "max_tries": -1,
        "delay": settings.reconnect_first_ms / 1000,
        "max_delay": settings.reconnect_max_ms / 1000,
    }
    handler = SequentialThreadingHandler()
    handler.spawn = partial(_spawn_quietly, handler.spawn)
    if hasattr(select, "poll"):  # Windows has none.
        handler.select = _wait_in_thread
    if settings.tls.encrypts:
        # Not kazoo's own context, which also trusts the system's authorities.
        settings.tls.client_context()
        handler.create_connection = partial(_connect_in_thread, settings.tls)
        handler.select = partial(_select_in_thread, handler.select)
    return KazooClient(
        _often_enough(hosts, settings.session_timeout_ms),
        timeout=settings.session_timeout_ms / 1000,
        connection_retry=retry,
        logger=logger,
        handler=handler,
        **options,
    )


def _connect_in_thread(
    tls: Security, address: tuple[str, int], hostname: str, timeout: float, **_options: object
) -> ssl.SSLSocket:
    """Connect; called by kazoo. Raises `OSError`."""
    context = tls.now.client_context()
    assert context is not None
    # A server that is starting may accept a connection without beginning a handshake.
    plain = socket.create_connection(address, timeout / _ATTEMPTS_MAX)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=hostname)
    except BaseException:
        plain.close()
        raise


def _wait_in_thread(
    reading: list[Any], writing: list[Any], _failing: list[Any], timeout_s: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait for sockets, none of which is in both lists; called by kazoo.

    Kazoo's own function creates and closes an epoll object for each wait; with this one, a call to
    ZooKeeper takes about two thirds of the processor time. Raises `ValueError` if a socket was
    closed.
    """
    timeout_ms = None if timeout_s is None else max(timeout_s, 0.0) * 1000
    waiting, numbers = select.poll(), dict[int, Any]()
    for each, events in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for one in each:
            numbers[one.fileno()] = one
            waiting.register(one, events)
    ready = [numbers[fd] for fd, _ in waiting.poll(timeout_ms)]
    return (
        [each for each in ready if each in reading],
        [each for each in ready if each in writing],
        [],
    )


def _select_in_thread(
    wait: Callable[..., Any], reading: list[Any], *others: Any
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait for sockets; called by kazoo. A socket with unread decrypted bytes is ready, too."""
    ready = [each for each in reading if isinstance(each, ssl.SSLSocket) and each.pending()]
    if not ready:
        found: tuple[list[Any], list[Any], list[Any]] = wait(reading, *others)
        return found
    readable, writable, failed = wait(reading, *others[:2], 0)
    return list(dict.fromkeys([*ready, *readable])), writable, failed


def _spawn_quietly(spawn: Callable[..., Any], work: Callable[..., Any], *told: Any) -> Any:
    """Have a thread work that ends without a traceback: kazoo has logged what it ends by."""

    def working() -> None:
        with contextlib.suppress(Exception):
            work(*told)

    return spawn(working)


def _often_enough(hosts: str, session_timeout_ms: int) -> str:
    """The hosts, each named so often that one that is silent does not cost the whole session.

    Kazoo waits for a server's greeting for the session's time divided by the number of hosts. A
    server that is starting may accept a connection and never greet.

    >>> _often_enough("zk1:2181", 10_000)
    'zk1:2181,zk1:2181,zk1:2181,zk1:2181'
    >>> _often_enough("zk1:2181,zk2:2181,zk3:2181", 3_000)
    'zk1:2181,zk2:2181,zk3:2181'
    """
    attempts = min(_ATTEMPTS_MAX, session_timeout_ms // _GREETING_MS)
    times = max(1, attempts // (hosts.count(",") + 1))
    return ",".join([hosts] * times)


def _translated(error: BaseException) -> EngineError:
    """What an error of kazoo means to a caller."""
    from kazoo import exceptions

    kinds: tuple[tuple[tuple[type[BaseException], ...], type[EngineError], str], ...] = (
        ((exceptions.NoNodeError,), NotFound, "no such node"),
        ((exceptions.NodeExistsError,), KeyExists, "the key exists"),
        ((exceptions.BadVersionError,), VersionConflict, "another version was expected"),
        ((exceptions.BadArgumentsError,), InvalidRequest, "ZooKeeper takes no such name"),
        (
            (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError),
            Unauthorized,
            "ZooKeeper refuses this user and password",
        ),
        (
            (
                exceptions.ConnectionLoss,
                exceptions.SessionExpiredError,
                exceptions.SessionMovedError,
                exceptions.OperationTimeoutError,
            ),
            ConnectionLost,
            "the connection to ZooKeeper was lost",
        ),
    )
    for causes, meaning, text in kinds:
        if isinstance(error, causes):
            return meaning(text)
    return MetadataUnavailable(f"ZooKeeper answered with {type(error).__name__}: {error}")
