"""How commands reach a broker: `/api/v1`, in this process or over the network.

A folder's broker runs in the process that needs it first. If that is `herdbook task serve`, the
file `tasks-http.json` in the folder says how to reach it. A broker in another process is reached
through the folder's socket; if there is none, it runs here, as long as the command does. In a
cluster the metadata store says which broker leads, and it is called over gRPC, as by programs.

Invariants:
- A command sends the same requests wherever the broker is.
- A cluster's broker checks the secret, certificate or login of the configuration; no password and
  no secret is sent over the network.
- The file that names a server is readable by its owner alone: it holds a password.
- That file is valid only while its server holds a lock (`flock`) on it: a file that a killed server
  left behind is ignored, even if another program now listens at its port.
"""

import fcntl
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, error_of
from engine.errors import EngineError, ExtraMissing, InvalidRequest
from engine.extras import needing_cluster
from engine.metadata.contract import MetadataStore
from herdbook.finding import (
    FILE_VARIABLE,
    Configuration,
    check_store,
    configuration_file,
    find,
    is_cluster,
    open_store,
    read_configuration,
)

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request

    from broker.access import Asking

SERVER_FILE: Final = "tasks-http.json"
SERVERS: Final = "/broker/http"
"""In a cluster's metadata store: where a broker that has an address serves HTTP."""
USER: Final = "herdbook-folder"
_TIMEOUT_S: Final = 70.0
_LEADERLESS_MS: Final = 10_000
"""So long a command looks for a broker that leads."""


class TaskServerFact(msgspec.Struct, frozen=True):
    """Where a server is; who may read this may log in."""

    url: str
    password: str = ""
    certificate: str = ""
    """The file of the server's own certificate, if it speaks TLS."""


class TaskApi:
    """Requests to a broker."""

    def __init__(self, client: "httpx.AsyncClient") -> None:
        self._client = client

    async def ask(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """The reply's JSON. Raises `BrokerError` for what was refused, or not answered."""
        import httpx

        content = None if body is None else msgspec.json.encode(body)
        params = {name: value for name, value in (query or {}).items() if value not in ("", None)}
        try:
            reply = await self._client.request(
                method, f"/api/v1{path}", content=content, params=params
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL) as error:
            text = f"nobody answers at {self._client.base_url}: {error}"
            raise BrokerUnavailable(text) from error
        except httpx.HTTPError as error:
            if method == "GET":
                text = f"{self._client.base_url} does not answer as a broker does: {error}"
                raise BrokerUnavailable(text) from error
            raise OutcomeUnknown(f"{self._client.base_url} broke off: {error}") from error
        try:
            told = msgspec.json.decode(reply.content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"{self._client.base_url} is no broker: its reply is no JSON"
            raise BrokerUnavailable(text) from error
        if reply.status_code >= 400:
            raise _error(told)
        return told


def _error(told: Any) -> BrokerError:
    said = told.get("error") if isinstance(told, dict) else None
    if not isinstance(said, dict):
        return BrokerUnavailable("what answers is no broker")
    return error_of(str(said.get("code")), str(said.get("message")), int(said.get("task_id", 0)))


@asynccontextmanager
async def open_tasks(
    url: str | None, broker: str | None = None, *, create: bool = False
) -> AsyncIterator[TaskApi]:
    """The broker at an HTTP address, or of the store that the rule finds.

    `create` makes a folder that is not there. Raises `StoreNotFound`, `BrokerUnavailable`.
    """
    _check_extra()
    if broker is not None:
        async with _over_http(TaskServerFact(broker), read_configured()) as api:
            yield api
        return
    configuration = read_configured()
    found = find(url, os.environ, configuration, create=create)
    if is_cluster(found):
        async with _in_cluster(found, configuration) as api:
            yield api
        return
    folder = Path(found)
    if not create:
        check_store(folder)
    served = read_server(folder)
    if served is not None:
        async with _over_http(served, configuration) as api:
            if await _answers(api):
                yield api
                return
    async with _here(folder) as api:
        yield api


def check_unserved(folder: Path) -> None:
    """Raise `InvalidRequest` for a folder whose tasks a server answers for already."""
    served = read_server(folder)
    if served is not None:
        raise InvalidRequest(
            f"the tasks of {folder} are already served at {served.url}: use that server, or stop "
            "it first"
        )


def read_configured() -> Configuration:
    """The user's configuration. Raises `InvalidRequest` for one that cannot be read."""
    needed = bool(os.environ.get(FILE_VARIABLE))
    return read_configuration(configuration_file(os.environ), needed=needed)


def read_server(folder: Path) -> TaskServerFact | None:
    """The running server of a folder, as it described itself; None if there is none."""
    try:
        with (folder / SERVER_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _decoded(folder)
    except OSError:
        return None
    # Nobody holds the lock: its server was killed.
    return None


def _decoded(folder: Path) -> TaskServerFact | None:
    try:
        return msgspec.json.decode((folder / SERVER_FILE).read_bytes(), type=TaskServerFact)
    except (OSError, msgspec.MsgspecError):
        return None


async def _answers(api: TaskApi) -> bool:
    """Whether a server is running: it may have ended a moment ago."""
    try:
        await api.ask("GET", "/status")
    except BrokerUnavailable as error:
        return error.code != BrokerUnavailable.code
    except BrokerError:
        pass
    return True


@asynccontextmanager
async def _over_http(fact: TaskServerFact, configuration: Configuration) -> AsyncIterator[TaskApi]:
    import httpx

    url = fact.url if "://" in fact.url else f"http://{fact.url}"
    verify: ssl.SSLContext | bool = True
    if fact.certificate:
        # This very certificate is trusted and no other one, whatever names it has.
        verify = ssl.create_default_context(cafile=fact.certificate)
        verify.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        verify.check_hostname = False
    elif url.startswith("https:"):
        verify = configuration.make_security().client_context() or True
    auth = httpx.BasicAuth(USER, fact.password) if fact.password else None
    async with httpx.AsyncClient(
        base_url=url, auth=auth, timeout=_TIMEOUT_S, verify=verify
    ) as client:
        yield TaskApi(client)


@asynccontextmanager
async def _here(folder: Path) -> AsyncIterator[TaskApi]:
    """The folder's broker, asked from this process as if over HTTP."""
    from broker.http import create_app, desk_for
    from herdbook.book import open_async

    async with open_async(folder) as book:
        app = create_app(desk_for(await book.broker.calls(), book.broker.payloads))
        async with _asked_here(app) as api:
            yield api


@asynccontextmanager
async def _in_cluster(url: str, configuration: Configuration) -> AsyncIterator[TaskApi]:
    """The broker of a cluster, which judges who asks; what asks it is in this process."""
    from broker.access import Asking
    from broker.http import create_app, desk_elsewhere
    from herdbook.payload_store import OpenedPayloads

    with needing_cluster():
        from broker.wire.cluster import ClusterCalls

    security = configuration.make_security()
    async with open_store(url) as client, OpenedPayloads(url) as payloads:
        calls = ClusterCalls(
            client.store,
            client.clock,
            client.rng,
            security=security,
            leaderless_ms=_LEADERLESS_MS,
        )
        try:
            app = create_app(desk_elsewhere(calls, payloads), _Judged(Asking(security.user)))
            async with _asked_here(app) as api:
                yield api
        finally:
            await calls.close()


class _Judged:
    """A `Doorkeeper` in front of calls that are judged where they are answered."""

    def __init__(self, who: "Asking") -> None:
        self._who = who

    def asking(self, request: "Request") -> "Asking":
        """Who asks, by name: for what says who did it."""
        return self._who


@asynccontextmanager
async def _asked_here(app: "Starlette") -> AsyncIterator[TaskApi]:
    import httpx

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield TaskApi(client)


async def server_of(store: MetadataStore, address: str) -> str:
    """Where the broker of an address serves HTTP. Raises `BrokerUnavailable`."""
    try:
        found = await store.get(f"{SERVERS}/{address}")
    except EngineError as error:
        raise BrokerUnavailable(f"where {address} serves HTTP is not known: {error}") from error
    if found is None:
        raise BrokerUnavailable(f"the broker {address} leads and serves no HTTP")
    return found.value.decode()


def _check_extra() -> None:
    for library in ("httpx", "starlette"):
        if find_spec(library) is None:
            raise ExtraMissing(
                f"tasks by command need {library}, which is not installed: "
                "pip install herdbook brings it"
            )
