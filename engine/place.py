"""Where a store is, in a form that travels to other processes, and what each of them keeps open.

    place = Place(url="herdbook://zookeeper-1:2181/prod", secret_file="/etc/herdbook/secret")
    held = held_client(place)
    metadata = held.run(lambda: held.client.ledger_metadata(7))

Programs of many processes, such as Spark's, send a `Place` along with their work. Whoever gets it
asks for the client of that place: the first call opens it, all later ones find it open.

Invariants:
- A place names files and never holds what is in them: it is pickled, logged and shown. A read
  token travels with it, which soon expires, and is not shown.
- A process has at most one client of a place, whose token is the newest that the process was told
  of. A forked child opens its own.
- A look makes nothing: a folder that is no store is an error.
- The process that plans has a metadata session, at a node or in ZooKeeper. Processes that get a
  place from `for_tasks` have none in ZooKeeper.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from engine.access.secret_files import secret_in, shared_secrets_in
from engine.access.shown import ShownToken
from engine.errors import FolderError, InvalidRequest
from engine.ledger.client import LedgerClient
from engine.metadata.cluster_url import SCHEME
from engine.ports.clock import SystemClock
from engine.ports.system_loop import BackgroundLoop, background_loop

if TYPE_CHECKING:
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.transport.security import Security

R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound="Held[Any]")


class Through(msgspec.Struct, frozen=True):
    """Servers of bookies that pass a cluster's metadata store on, by their addresses."""

    cluster_id: str
    addresses: tuple[str, ...]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A store: a folder by its absolute path, or a cluster by its url and what it asks for.

    What a cluster asks for are names of files, which lie at the same path on every machine that
    works for a program; secrets themselves never travel. `token` lets its holder read what it names
    from bookies. The files of a login, `password_file` or `token_file`, are read by the program's
    own process alone.

    >>> Place(url="herdbook://zookeeper-1:2181/prod").is_cluster
    True
    """

    url: str = ""
    wire: Literal["framed", "grpc"] = "framed"
    survives: Literal["", "bookie", "host", "rack", "zone"] = ""
    secret_file: str = ""
    certificate: str = ""
    private_key: str = ""
    authorities: str = ""
    zookeeper_user: str = ""
    zookeeper_password_file: str = ""
    zookeeper_authorities: str = ""
    zookeeper_certificate: str = ""
    zookeeper_private_key: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    token: str = ""
    renewed: str = ""
    """The file, on the driver's machine, in which it leaves newer ones; "": there are none."""
    through: Through | None = None
    """Where the metadata store is asked rather than in ZooKeeper; `for_tasks` tells."""

    @property
    def is_cluster(self) -> bool:
        """Whether it is a cluster rather than a folder."""
        return self.url.startswith(SCHEME)

    def __repr__(self) -> str:
        return f"Place(url={self.url!r}, wire={self.wire!r})"

    @property
    def needs_token(self) -> bool:
        """Whether bookies are to be read by a token that is not there yet."""
        logs_in = bool(self.user or self.token_file)
        return self.is_cluster and logs_in and not (self.secret_file or self.token)

    def at(self, url: str | None, token: str | None = None) -> "Place":
        """This place or, spoken to in the same way, another one: what an option `url` names, with
        the token that an option names.

        Raises `InvalidRequest` if neither names a store.
        """
        named = url or self.url
        if not named:
            raise InvalidRequest(
                "no store is named: give a folder or herdbook://host:port/path as the option url, "
                "or to herdbook.spark.register"
            )
        if not named.startswith(SCHEME):
            named = str(Path(named).absolute())
        if not token:
            return msgspec.structs.replace(self, url=named)
        return msgspec.structs.replace(self, url=named, token=token, renewed="")

    def make_security(self, *, login: bool = False) -> "Security":
        """Secret, certificates and read token; with `login` what a user logs in by, too.

        Raises `InvalidRequest` for files that cannot be read here.
        """
        from engine.transport.security import Security

        return Security.renewed(partial(self._read_security, login))

    def _read_security(self, login: bool) -> "Security":
        from engine.transport.security import Security

        secret, other = shared_secrets_in(_here(self.secret_file))
        password = _content(self.password_file if login and self.user else "").decode()
        return Security(
            user=self.user if login else "",
            password=password,
            token=_content(self.token_file if login and not self.user else "").decode(),
            read_token=_shown_at(self) if self.renewed else self.token,
            secret=secret,
            other_secret=other,
            certificate=_path(self.certificate),
            private_key=_path(self.private_key),
            authorities=_path(self.authorities),
        )

    def make_zookeeper(self) -> "ZooKeeperSettings":
        """Credentials of ZooKeeper. Raises `InvalidRequest` for a file that cannot be read here."""
        from engine.metadata.zookeeper_settings import ZooKeeperSettings
        from engine.transport.security import Security

        password = _content(self.zookeeper_password_file).decode()
        tls = Security(
            b"",
            _path(self.zookeeper_certificate),
            _path(self.zookeeper_private_key),
            _path(self.zookeeper_authorities),
        )
        return ZooKeeperSettings(user=self.zookeeper_user, password=password, tls=tls)


@asynccontextmanager
async def open_place(place: Place) -> AsyncIterator[LedgerClient]:
    """The ledgers of a place as long as the block lasts.

    Raises `FolderError` for a folder that holds no store, and what `engine.open` and
    `engine.connect` raise.
    """
    if place.is_cluster:
        # What a cluster needs loads when one is reached.
        from engine.connecting import connect
        from engine.ledger.settings import ClientSettings

        # Users log in at nodes. Bookies never ask for a login.
        security, zookeeper = place.make_security(login=True), place.make_zookeeper()
        async with connect(
            place.url,
            settings=ClientSettings(survives=place.survives),
            security=security,
            wire=place.wire,
            zookeeper=zookeeper,
            through=place.through,
        ) as connection:
            yield connection
        return
    _check_folder(Path(place.url))
    # A client of a cluster needs neither RocksDB nor a folder's lock.
    from engine import cluster

    async with cluster.open(place.url) as engine:
        yield engine


class Held(Generic[T]):
    """Something that stays open on the background loop until its process ends."""

    def __init__(self, opening: AbstractAsyncContextManager[T]) -> None:
        """Open it. Raises what opening raises."""
        self._loop: BackgroundLoop = background_loop()
        self._stack = AsyncExitStack()

        async def begin() -> T:
            return await self._stack.enter_async_context(opening)

        self.opened: T = self._loop.run(begin)
        atexit.register(self.close)

    @property
    def usable(self) -> bool:
        """Whether this is the process that opened it."""
        return self._loop.usable

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and wait for its result, or raise what it raised."""
        return self._loop.run(call)

    def begin(self, call: Callable[[], Coroutine[Any, Any, R]]) -> "Future[R]":
        """Begin a coroutine on the loop; its result is waited for in a thread."""
        self._loop.check()
        return asyncio.run_coroutine_threadsafe(call(), self._loop.loop)

    def close(self) -> None:
        """Let go. In a forked child it does nothing."""
        atexit.unregister(self.close)
        if self.usable:
            self._loop.run(self._stack.aclose)


class HeldClient(Held[LedgerClient]):
    """The ledgers of a place, kept open."""

    @property
    def client(self) -> LedgerClient:
        """Use it on the loop, by `run`."""
        return self.opened


class Holding(Generic[H]):
    """What a process keeps open, by place; `open_held` opens one."""

    def __init__(self, open_held: Callable[[Place], H]) -> None:
        self._open_held = open_held
        self._held: dict[Place, H] = {}
        self._opening = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)

    def at(self, place: Place) -> H:
        """What is open at a place, opened if nothing is. Raises what opening raises."""
        _shown_at(place)
        with self._opening:
            key = _without_token(place)
            found = self._held.get(key)
            if found is None or not found.usable:
                found = self._held[key] = self._open_held(place)
            return found

    def let_go(self, place: Place) -> None:
        """Close what is open at a place, if anything is. Who asks next opens it again."""
        with self._opening:
            found = self._held.pop(_without_token(place), None)
        if found is not None:
            found.close()

    def _after_fork(self) -> None:
        """The parent may have forked while another thread held the lock."""
        self._opening = threading.Lock()


def _without_token(place: Place) -> Place:
    """What stays the same of a place whose token is renewed."""
    return msgspec.structs.replace(place, token="") if place.renewed else place


def _shown_at(place: Place) -> ShownToken:
    """What this process shows at the bookies of a place: the newest token that it was told of."""
    if not place.renewed:
        return ShownToken(place.token, clock=SystemClock())
    made = ShownToken(clock=SystemClock(), file=Path(place.renewed))
    shown = _shown.setdefault(msgspec.structs.replace(place, token="", through=None), made)
    shown.renew(place.token)
    return shown


_shown: Final[dict[Place, ShownToken]] = {}
_clients: Final = Holding(lambda place: HeldClient(open_place(place)))


def held_client(place: Place) -> HeldClient:
    """The one client of a place in this process, open until the process ends.

    Blocks; for threads that have no event loop. Raises as `open_place`.
    """
    return _clients.at(place)


def for_tasks(place: Place) -> Place:
    """A place as tasks are told of it, which may be many: they need no session of ZooKeeper.

    They ask for metadata where bookies are, over the framed wire. Of a folder, and over gRPC, it is
    the same place. They show the newest token, and do not log in. Blocks; for planning.

    Raises `MetadataUnavailable`.
    """
    told = msgspec.structs.replace(
        place, token=_shown_at(place).text, user="", password_file="", token_file=""
    )
    if not place.is_cluster or place.wire != "framed":
        return told
    held = held_client(place)
    # What a cluster needs loads when one is reached.
    from engine.metadata.bookies import Bookies

    store = held.client.store
    found = held.run(Bookies(store).available)
    addresses = tuple(one.address for one in found.values() if one.address)
    return msgspec.structs.replace(told, through=Through(store.cluster_id, addresses))


def let_go(place: Place) -> None:
    """Close the client of a place, if one is held. Who needs it next opens it again."""
    _clients.let_go(place)


def _check_folder(folder: Path) -> None:
    from engine.folder.lock import LOCK_NAME, METADATA_NAME

    if (folder / METADATA_NAME).is_dir():
        return
    if not (folder / LOCK_NAME).is_file() or not list(folder.glob("bookie-*")):
        raise FolderError(
            f"{folder} holds no store on this machine: name a folder that herdbook.open has made, "
            "or a cluster that all machines reach"
        )


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def _content(name: str) -> bytes:
    return secret_in(_here(name))


def _here(name: str) -> Path | None:
    """Check that a file is on this machine, and return it. Raises `InvalidRequest`."""
    if name and not Path(name).exists():
        raise InvalidRequest(f"{name} cannot be read: there is no such file on this machine")
    return _path(name)
