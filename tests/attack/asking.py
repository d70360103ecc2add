"""Asking at every door of a fort, as somebody, about something.

Invariants:
- Each request is as small as one may be that is right in its form. What it is about is told by a
  `Thing` alone, so that the same can be asked about what there is not.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import grpc
import msgspec
from google.protobuf import descriptor_pool, message_factory
from grpc import aio

from broker.commands import Schedule, Spec
from broker.connection import Hello, WorkerLimits
from broker.errors import AccessDenied as TasksDenied
from broker.reading import TaskFilter
from broker.rollout_commands import RolloutChange
from broker.task import Status as TaskStatus
from broker.task import Task
from broker.wire.asking import METHODS
from broker.wire.worker_messages import WorkerMessages
from engine.errors import AccessRefused, EngineError
from engine.metadata import remote_messages
from engine.ports.clock import SystemClock
from engine.transport import messages as bookie_messages
from engine.transport.contract import Bookie, ReadRequest, Status
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import Kind
from engine.transport.grpc_security import SECRET_METADATA
from engine.transport.security import Security
from herd.errors import AccessDenied, Error
from herd.nodes.facts import SPACES
from herd.wire import messages
from herd.wire.framed_client import FramedChannel, dial_sessions
from tests.attack.fort import ALMA, GHOST, LEDGER, SECRET, Fort, Thing, Web
from tests.engine.transport.bookie_contract import KEY, append, runs_of
from tests.engine.transport.grpc_wiring import GrpcTransport

_CLOCK: Final = SystemClock()
_FOREIGN_USER: Final = 4_000_000
_WRONG: Final = b"known to nobody at all"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it: whether it was refused, and what was said."""

    refused: bool
    text: str
    missing: bool = False
    """Whether it was said that there is no such thing."""


# HTTP

_BODIES: Final[dict[str, Callable[[Thing], Any]]] = {
    "POST /api/v1/tasks": lambda of: {"type": "milk", "tenant": of.name},
    "POST /api/v1/tasks/batch": lambda of: {"tasks": [{"type": "milk", "tenant": of.name}]},
    "POST /api/v1/tasks/cancel": lambda of: {"ids": [of.waiting]},
    "POST /api/v1/tasks/retry": lambda of: {"ids": [of.ended]},
    "POST /api/v1/tasks/delete": lambda of: {"ids": [of.ended]},
    "POST /api/v1/transactions": lambda of: {},
    "PUT /api/v1/schedules/{name}": lambda of: {
        "task": {"type": "milk", "tenant": of.name},
        "cron": "0 0 1 1 *",
    },
    "PUT /api/v1/settings/{kind}/{name}": lambda of: {"limit": 7},
    "POST /api/v1/rollouts": lambda of: {
        "action": "a",
        "version": 1,
        "limit": 1,
        "cluster_name": of.name,
        "nodes": [],
    },
    "POST /api/v1/rollouts/{name}/clear": lambda of: {"node": "a"},
    "POST /api/v1/tablespaces/{name}/query": lambda of: {"sql": "SELECT * FROM cow"},
    "POST /api/v1/buckets": lambda of: {"name": of.name},
    "PUT /api/v1/buckets/{bucket}/quota": lambda of: {"objects_max": 1_000},
    "POST /api/v1/login": lambda of: {"user": of.name, "password": "x" * 8},
}
_QUERIES: Final[dict[str, Callable[[Thing], dict[str, str]]]] = {
    "GET /api/v1/tasks": lambda of: {"tenant": of.name},
    "GET /api/v1/dead-letters": lambda of: {"tenant": of.name},
    "GET /api/v1/tasks/{id}/wait": lambda of: {"timeout_ms": "0"},
}
_ORIGINAL: Final[dict[str, Callable[[Thing], dict[str, Any]]]] = {
    "task": lambda of: {"taskId": of.waiting},
    "codePool": lambda of: {"codePoolId": f"pool-of-{of.name}"},
    "submitTask": lambda of: {"tasktype": "milk", "userid": of.name},
    "submitTasks": lambda of: {"tasks": [{"tasktype": "milk", "userid": of.name}]},
    "commitTransaction": lambda of: {"transaction": of.transaction},
    "rollbackTransaction": lambda of: {"transaction": of.transaction},
    "createCodePool": lambda of: {"id": f"pool-of-{of.name}", "data": ""},
    "deleteCodePool": lambda of: {"id": f"pool-of-{of.name}"},
}


def _path(action: str, of: Thing) -> str:
    """The path of a route, filled in."""
    method, _, path = action.partition(" ")
    if "/transactions/" in path:
        number = of.transaction
    elif "/tasks/" in path:
        gone = path.endswith(("/retry", "/result")) or method == "DELETE"
        number = of.ended if gone else of.waiting
    else:
        number = 1
    for convertor in (":path", ":anything"):
        path = path.replace(convertor, "")
    names = {"id": number, "bucket": of.name, "kind": "resource"}
    names["name"] = f"object-of-{of.name}" if "/objects/" in path else of.name
    return path.format(**names)


def ask_http(fort: Fort, door: str, action: str, role: str, of: Thing) -> Reply:
    """Ask a server of HTTP."""
    return _replied(fort.web(door, role), action, of)


def _replied(client: Web, action: str, of: Thing) -> Reply:
    plain = action.replace(":path", "").replace(":anything", "")
    method, _, path = plain.partition(" ")
    query = _QUERIES[plain](of) if plain in _QUERIES else {}
    body = _BODIES[plain](of) if plain in _BODIES else None
    if path.startswith("/majordodo"):
        path, _, name = path.partition(" ")
        more = _ORIGINAL[name](of) if name in _ORIGINAL else {}
        query = {"view": name, **more} if method == "GET" else {}
        body = {"action": name, **more} if method == "POST" else None
    elif path.startswith("the files"):
        path = "/index.html"
    else:
        path = _path(action, of)
    sent = b"moo" if "/objects/" in path and method == "PUT" else b""
    reply = client.ask(method, path, query, sent if body is None else msgspec.json.encode(body))
    if path == "/api/v1/login":
        # Nobody is known before it, and a password that is wrong is its answer.
        return Reply(False, "")
    empty = '"task":{}' in reply.text or '"codePool":{}' in reply.text
    missing = reply.status == 404 or empty or "no transaction" in reply.text
    refused = reply.status in (401, 403) or (
        path == "/majordodo"
        and '"ok":false' in reply.text
        and any(
            words in reply.text
            for words in ("is no administrator", "may only act", "may not act for")
        )
    )
    return Reply(refused, reply.text, missing)


# SQL

STATEMENTS: Final = {
    "SELECT": "SELECT * FROM cow",
    "SELECT by key": "SELECT name FROM cow WHERE id = 1",
    "SELECT by index": "SELECT id FROM cow WHERE name = 'x'",
    "SELECT FOR UPDATE": "SELECT * FROM cow FOR UPDATE",
    "WITH": "WITH a AS (SELECT 1 AS n) SELECT n FROM a",
    "VALUES": "VALUES (1)",
    "FROM": "FROM cow",
    "SHOW TABLES": "SHOW TABLES",
    "SHOW CREATE TABLE": "SHOW CREATE TABLE cow",
    "SHOW CHECKPOINTS": "SHOW CHECKPOINTS",
    "DESCRIBE": "DESCRIBE cow",
    "DESC": "DESC cow",
    "EXPLAIN": "EXPLAIN SELECT * FROM cow",
    "EXPLAIN DELETE": "EXPLAIN DELETE FROM cow",
    "SET": "SET AUTOCOMMIT = 1",
    "BEGIN": "BEGIN",
    "START": "START TRANSACTION",
    "SAVEPOINT": "SAVEPOINT a",
    "RELEASE": "RELEASE a",
    "COMMIT": "COMMIT",
    "END": "END",
    "ROLLBACK": "ROLLBACK",
    "ABORT": "ABORT",
    "CHECKPOINT IF CHANGED": "CHECKPOINT IF CHANGED",
    "CHECKPOINT": "CHECKPOINT",
    "INSERT": "INSERT INTO cow (id, name) VALUES (7, 'x')",
    "INSERT SELECT": "INSERT INTO cow (id, name) SELECT id + 10, name FROM cow",
    "UPSERT": "UPSERT INTO cow (id, name) VALUES (8, 'x')",
    "REPLACE": "REPLACE INTO cow (id, name) VALUES (9, 'x')",
    "UPDATE": "UPDATE cow SET name = 'y' WHERE name = 'z'",
    "UPDATE by key": "UPDATE cow SET name = 'y' WHERE id = 7",
    "DELETE": "DELETE FROM cow WHERE name = 'z'",
    "DELETE by key": "DELETE FROM cow WHERE id = 7",
    "MERGE": "MERGE INTO cow USING cow AS c ON c.id = cow.id WHEN MATCHED THEN DELETE",
    "INGEST": "INGEST 1/0/1/1 AS 00",
    "INGEST INTO": "INGEST INTO cow AS 00",
    "CREATE TABLE": "CREATE TABLE calf (id INT PRIMARY KEY)",
    "CREATE TABLE AS": "CREATE TABLE calf AS SELECT 1 AS id",
    "CREATE VIEW": "CREATE VIEW cows AS SELECT * FROM cow",
    "CREATE INDEX": "CREATE INDEX by_name ON cow (name)",
    "ALTER": "ALTER TABLE cow ADD COLUMN milk INT",
    "TRUNCATE": "TRUNCATE TABLE calf",
    "DROP INDEX": "DROP INDEX by_name ON cow",
    "DROP VIEW": "DROP VIEW cows",
    "DROP TABLE": "DROP TABLE calf",
    "CHECK": "CHECK TABLESPACE",
    "RESTORE": "RESTORE TABLESPACE {name} UNTIL 1/1",
    "CREATE TABLESPACE": "CREATE TABLESPACE {name}",
    "ALTER TABLESPACE": "ALTER TABLESPACE {name} SET replicas = 1",
    "DROP TABLESPACE": "DROP TABLESPACE {name}-of-nobody",
}


def statement(action: str, of: Thing) -> str:
    """The text of a statement."""
    head, found, name = action.partition("SELECT FROM ")
    return (
        f"SELECT * FROM {name}" if found and not head else STATEMENTS[action].format(name=of.name)
    )


def ask_sql_by_http(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask for a statement over HTTP."""
    path = f"/api/v1/tablespaces/{of.name}/query"
    client = fort.web("node-http", role)
    body = msgspec.json.encode({"sql": statement(action, of)})
    reply = client.ask("POST", path, body=body)
    return Reply(reply.status in (401, 403), reply.text)


def ask_sql_by_frames(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask for a statement in a session over frames."""
    return fort.run(lambda: _ask_statement(fort, statement(action, of), role, of))


async def _ask_statement(fort: Fort, text: str, role: str, of: Thing) -> Reply:
    try:
        channel = await session_channel(fort, role)
    except AccessDenied as error:
        return Reply(True, str(error))
    try:
        opened = messages.decode_answer(await channel.ask(messages.encode(messages.Open(of.name))))
        if not isinstance(opened, messages.Opened):
            return _herd_reply(opened)
        call = messages.Execute(opened.session, messages.AUTOCOMMIT, text)
        return _herd_reply(messages.decode_answer(await channel.ask(messages.encode(call))))
    finally:
        channel.close()


# Tablespaces


def security_of(fort: Fort, role: str) -> Security:
    """What somebody shows."""
    if role == "part":
        return Security(secret=SECRET)
    if role == "nobody":
        return Security()
    return Security(token=fort.tokens[role])


async def session_channel(fort: Fort, role: str) -> FramedChannel:
    """A channel to the node of tablespaces. Raises `AccessDenied`."""
    address = f"tcp:127.0.0.1:{fort.frames['herd']}"
    return await dial_sessions(address, _CLOCK, security=security_of(fort, role))


def _herd_reply(answer: messages.Answer) -> Reply:
    if not isinstance(answer, messages.Failed):
        return Reply(False, repr(answer))
    missing = answer.name == "SessionLost" or "no such result" in answer.message
    return Reply(answer.name == "AccessDenied", f"{answer.message} {answer.hint}", missing)


def herd_call(action: str, of: Thing, session: int) -> messages.Call:
    """A call of a kind."""
    kind = getattr(messages, action)
    values: dict[str, Any] = {
        "tablespace": of.name,
        "table": "cow",
        "mode": 1,
        "client": bytes(16),
        "sequence": 1,
        "session": session,
        "text": "SELECT 1",
        "rows": [],
        "keys": [1],
        "key": 1,
        "result": 0,
        "changes": {},
        "columns": [],
        "primary": [],
        "path": "/nowhere/at/all",
        "source": of.name,
        "ledger": 1,
        "entry": 1,
    }
    if action in ("Get", "Put", "Update", "Delete"):
        # Alone, and not of a session.
        del values["session"]
    made: messages.Call = kind(
        **{name: values[name] for name in kind.__struct_fields__ if name in values}
    )
    return made


def ask_herd_frames(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a node of tablespaces over frames."""

    async def ask() -> Reply:
        try:
            channel = await session_channel(fort, role)
        except AccessDenied as error:
            return Reply(True, str(error))
        owner = await session_channel(fort, "keeper")
        try:
            session = await _session_at(channel, of) or await _session_at(owner, of) or 7_000_003
            call = messages.encode(herd_call(action, of, session))
            return _herd_reply(messages.decode_answer(await channel.ask(call)))
        except Error as error:
            return Reply(isinstance(error, AccessDenied), str(error))
        finally:
            channel.close()
            owner.close()

    return fort.run(ask)


async def _session_at(channel: FramedChannel, of: Thing) -> int:
    call = messages.encode(messages.Open(of.name))
    opened = messages.decode_answer(await channel.ask(call))
    return opened.session if isinstance(opened, messages.Opened) else 0


# gRPC


def metadata_of(fort: Fort, role: str, tokens: dict[str, str] | None = None) -> Any:
    """What a call of somebody carries."""
    if role == "part":
        return [(SECRET_METADATA, SECRET)]
    if role == "nobody":
        return []
    wrong = [(SECRET_METADATA, _WRONG)] if role == "wrong" else []
    return [*wrong, ("authorization", f"Bearer {(tokens or fort.tokens)[role]}")]


async def _call(fort: Fort, server: str, method: str, role: str, said: dict[str, Any]) -> Any:
    """The first reply of a method, None where it ends without one. Raises `AioRpcError`."""
    service = descriptor_pool.Default().FindServiceByName(method.rpartition("/")[0])
    found = service.methods_by_name[method.rpartition("/")[2]]
    request = message_factory.GetMessageClass(found.input_type)(**said).SerializeToString()
    async with aio.insecure_channel(fort.grpc[server]) as channel:
        multi: Any = channel.stream_stream(f"/{method}", None, None)
        call = multi(metadata=metadata_of(fort, role), timeout=10)
        try:
            # To send to what has been refused is an error of its own.
            if role not in ("nobody", "wrong") or (role, found.name) == ("nobody", "Login"):
                await call.write(request)
                if not found.client_streaming or found.name == "ExecuteMany":
                    await call.done_writing()
            data = await call.read()
            if not isinstance(data, bytes):
                none = aio.Metadata()
                raise aio.AioRpcError(await call.code(), none, none, await call.details(), None)
            reply = message_factory.GetMessageClass(found.output_type).FromString(data)
        finally:
            call.cancel()
    return reply


def _grpc_reply(error: aio.AioRpcError) -> Reply:
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    return Reply(error.code() in refusals, str(error.details()))


def ask_herd_grpc(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a node of tablespaces over gRPC."""
    service = "herdbook.v1.Tablespaces"
    one = msgspec.msgpack.encode([1])
    said: dict[str, dict[str, Any]] = {
        "Open": {"tablespace": of.name},
        "Execute": {"text": "SELECT 1"},
        "ExecuteMany": {"text": "INSERT INTO cow (id, name) VALUES (?, ?)"},
        "Outcome": {"tablespace": of.name, "client": bytes(16)},
        "Describe": {"tablespace": of.name, "table": "cow"},
        "Get": {"tablespace": of.name, "table": "cow", "keys": one},
        "Put": {"tablespace": of.name, "table": "cow", "rows": msgspec.msgpack.encode([])},
        "Delete": {"tablespace": of.name, "table": "cow", "keys": msgspec.msgpack.encode([77])},
        "Scan": {"tablespace": of.name, "table": "cow"},
    }
    asked = said.get(action, {})

    async def ask() -> Reply:
        if action in ("Execute", "ExecuteMany", "Begin", "Commit", "Rollback", "Renew", "Close"):
            session = b""
            for opener in (role, "keeper"):
                try:
                    opened = await _call(
                        fort, "herd", f"{service}/Open", opener, {"tablespace": of.name}
                    )
                except aio.AioRpcError:
                    continue
                session = session or opened.session
            asked["session"] = session or bytes(16)
        try:
            reply = await _call(fort, "herd", f"{service}/{action}", role, asked)
        except aio.AioRpcError as error:
            return _grpc_reply(error)
        failure = reply.failure
        return Reply(
            failure.name == "AccessDenied",
            f"{failure.message} {failure.hint}" if failure.name else str(reply),
            failure.name == "SessionLost",
        )

    return fort.run(ask)


def ask_broker_grpc(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a broker over gRPC."""
    task = {"type": "milk", "tenant": of.name}
    said: dict[str, dict[str, Any]] = {
        "Submit": {"tasks": [task]},
        "Tasks": {"ids": [of.waiting], "with_payload": True},
        "Cancel": {"ids": [of.waiting]},
        "Retry": {"ids": [of.ended]},
        "CommitTransaction": {"transaction": of.transaction},
        "RollbackTransaction": {"transaction": of.transaction},
        "Ask": {"name": "now_ms", "arguments": msgspec.msgpack.encode([])},
        "Asks": {"asks": [{"name": "now_ms", "number": 1, "arguments": b"\x90"}]},
        "FetchCode": {"name": f"pool-of-{of.name}"},
    }
    return fort.run(lambda: _ask_broker(fort, action, role, said.get(action, {})))


def ask_broker_call(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a broker one of its calls."""
    packed = METHODS[action].pack(*_broker_arguments(action, of))
    asked = {"name": action, "arguments": packed}
    return fort.run(lambda: _ask_broker(fort, "Ask", role, asked))


async def _ask_broker(fort: Fort, method: str, role: str, said: dict[str, Any]) -> Reply:
    service = "herdbook.broker.v1.Broker"
    if method == "Work":
        data = WorkerMessages().pack_hello(Hello("w", "1", "here", (), WorkerLimits(places=1)))
        from broker.wire.grpc_generated import broker_pb2

        said = {"messages": broker_pb2.WorkerMessages.FromString(data).messages}
    try:
        reply = await _call(fort, "broker", f"{service}/{method}", role, said)
    except aio.AioRpcError as error:
        return _grpc_reply(error)
    if method == "Work":
        refused = reply.messages[0].WhichOneof("message") == "refused"
        return Reply(refused, str(reply))
    if method == "Asks":
        [reply] = reply.replies
    failure = reply.failure
    missing = failure.code.startswith("unknown_") or (method == "Tasks" and not reply.tasks)
    text = failure.message or getattr(reply, "result", b"").decode("latin-1") or str(reply)
    return Reply(failure.code == TasksDenied.code, text, missing)


def _broker_arguments(action: str, of: Thing) -> tuple[list[Any], dict[str, Any]]:
    spec = Spec(type="milk", tenant=of.name)
    some: dict[str, list[Any]] = {
        "submit": [[spec]],
        "commit": [of.transaction],
        "rollback": [of.transaction],
        "task": [of.waiting],
        "payload": [_task(of.waiting, of.name)],
        "result": [_task(of.ended, of.name)],
        "wait": [of.waiting, 1],
        "tasks": [TaskFilter(tenant=of.name)],
        "cancel": [[of.waiting]],
        "retry": [[of.ended]],
        "delete": [[of.ended]],
        "set": ["resource", of.name, None],
        "set_schedule": [Schedule(of.name, spec, "0 0 1 1 *")],
        "delete_schedule": [of.name],
        "pause_schedule": [of.name],
        "put_code": [f"pool-of-{of.name}", b"x"],
        "delete_code": [f"pool-of-{of.name}"],
        "rollout": [of.name],
        "rollout_notes": [of.name],
        "put_rollout": [RolloutChange(of.name, 7, b"", of.name)],
        "remove_rollout": [of.name, 0],
    }
    return some.get(action, []), {}


def _task(number: int, tenant: str) -> Task:
    return Task(number, tenant, "milk", TaskStatus.WAITING)


def ask_login(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Begin a login over gRPC; who asks shows what they have, too."""

    async def ask() -> Reply:
        said = {"message": b"n,,n=none,r=abcdefgh"}
        try:
            return Reply(
                False, str(await _call(fort, "herd", "herdbook.access.v1.Access/Login", role, said))
            )
        except aio.AioRpcError as error:
            return _grpc_reply(error)

    return fort.run(ask)


# Bookies


def _bookie_security(fort: Fort, role: str) -> Security:
    if role == "part":
        return Security(secret=SECRET)
    if role == "nobody":
        return Security()
    if role == "wrong":
        return Security(secret=_WRONG)
    return Security(read_token=fort.read_tokens[role])


async def _bookie_connection(fort: Fort, role: str, **options: Any) -> ClientConnection:
    address = f"tcp:127.0.0.1:{fort.frames['bookie']}"
    security = _bookie_security(fort, role).at_bookies()
    return await ClientConnection.dial(address, options, _CLOCK, FramedSettings(), security)


def ask_bookie_frames(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Send a bookie a frame of a kind."""
    kind, ledger = Kind[action], LEDGER if of.name == ALMA else GHOST.ended
    heads: dict[Kind, Any] = {
        Kind.CONNECT: bookie_messages.Connect("a"),
        Kind.READ: bookie_messages.Read(ledger, 0, 0, 100),
        Kind.FENCE: bookie_messages.Fence(ledger, KEY),
        Kind.WAIT_LAC: bookie_messages.WaitLac(ledger, -2, 0),
        Kind.INFO: None,
    }
    head = b"\xc1" if kind not in heads else bookie_messages.encode(heads[kind])

    async def ask() -> Reply:
        try:
            connection = await _bookie_connection(fort, role)
        except AccessRefused as error:
            return Reply(True, str(error))
        try:
            connect = bookie_messages.encode(bookie_messages.Connect("a"))
            await connection.call(Kind.CONNECT, connect)
            if role == "part" and kind in (Kind.UNWATCH, Kind.CONTROL):
                # The one has no answer, the other one needs none of a right form.
                return Reply(False, "")
            frame = await connection.call(kind, head, target=1)
        except (EngineError, OSError) as error:
            return Reply(isinstance(error, AccessRefused), str(error))
        finally:
            connection.close()
        status = Status.OK
        if frame.kind == Kind.READ_REPLY:
            status = bookie_messages.decode_read_reply(frame, "a").status
        elif frame.kind == Kind.LAC_REPLY:
            status = bookie_messages.decode_lac_reply(frame.head, "a").status
        return Reply(status is Status.UNAUTHORIZED, status.name, status is Status.NO_SUCH_LEDGER)

    return fort.run(ask)


def ask_bookie_grpc(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a bookie over gRPC."""
    ledger = LEDGER if of.name == ALMA else GHOST.ended

    async def asked(bookie: Bookie) -> Any:
        if action == "Append":
            return await append(bookie, runs_of(ledger, 1, [[b"more"]]))
        if action == "Read":
            return await bookie.read(ReadRequest(ledger, 0, 0, 100, None))
        if action == "WaitLac":
            return await bookie.wait_lac(ledger, -2, 0)
        if action == "Fence":
            return await bookie.fence(ledger, KEY)
        return await bookie.info()

    async def ask() -> Reply:
        transport = GrpcTransport(fort.grpc["bookie"], _bookie_security(fort, role))
        try:
            reply = await asked(await transport.connect("a"))
        except EngineError as error:
            return Reply(isinstance(error, AccessRefused), str(error))
        finally:
            await transport.close()
        status = getattr(reply, "status", Status.OK)
        return Reply(status is Status.UNAUTHORIZED, status.name, status is Status.NO_SUCH_LEDGER)

    return fort.run(ask)


def ask_metadata(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a bookie's server for metadata, with a read token or the secret."""
    return _ask_metadata(
        fort, action, f"/{of.name}", lambda: _bookie_connection(fort, role, **_SESSION)
    )


def ask_metadata_node(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Ask a node for metadata of a tablespace, with a login or the secret."""

    async def dial() -> ClientConnection:
        address, security = f"tcp:127.0.0.1:{fort.frames['herd']}", security_of(fort, role)
        return await ClientConnection.dial(address, _SESSION, _CLOCK, FramedSettings(), security)

    return _ask_metadata(fort, action, f"{SPACES}/{of.name}", dial)


_SESSION: Final = {"session": True}


def _ask_metadata(
    fort: Fort, action: str, key: str, dial: Callable[[], Awaitable[ClientConnection]]
) -> Reply:
    arguments: dict[str, tuple[Any, ...]] = {
        "Get": (key,),
        "Create": (key, b"", False),
        "Set": (key, b"", 0),
        "Delete": (key, None),
        "Children": (key.rpartition("/")[0] or "/", ""),
        "NextId": ("n",),
        "Page": ("/", 0),
        "Ping": (),
        "ServerTime": (),
        "Sync": (),
    }
    call = getattr(remote_messages, action)(*arguments[action])

    async def ask() -> Reply:
        try:
            connection = await dial()
        except AccessRefused as error:
            return Reply(True, str(error))
        try:
            frame = await connection.call(Kind.METADATA, bookie_messages.encode(call))
        except EngineError as error:
            return Reply(isinstance(error, AccessRefused), str(error))
        finally:
            connection.close()
        return Reply(False, frame.head.decode(errors="replace"))

    return fort.run(ask)


# Unix sockets


def ask_own_socket(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Come to a socket as a process of its user: who is let in hears why their greeting is none."""
    said = _said_at(fort.sockets()[action])
    return Reply(not said, said.decode(errors="replace"))


def ask_foreign_socket(fort: Fort, action: str, role: str, of: Thing) -> Reply:
    """Come as another user's process. Neither the system nor the server may let it in."""
    path = fort.sockets()[action]
    closed = not (path.lstat().st_mode & 0o077 or path.parent.lstat().st_mode & 0o077)
    with patch("engine.transport.serving.peer_user", return_value=_FOREIGN_USER):
        said = _said_at(path)
    return Reply(closed and not said, said.decode(errors="replace"))


def _said_at(path: Path) -> bytes:
    """What a server says to who sends a frame that is no greeting; nothing if it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(20)
        end.connect(str(path))
        with suppress(ConnectionError):
            end.sendall(bytes(64))
            return end.recv(4_096)
    return b""


def ask(fort: Fort, door: str, action: str, role: str, of: Thing) -> Reply:
    """Ask at a door."""
    asks: dict[str, Callable[[Fort, str, str, Thing], Reply]] = {
        "herd-frames": ask_herd_frames,
        "herd-grpc": ask_herd_grpc,
        "login-grpc": ask_login,
        "broker-grpc": ask_broker_grpc,
        "broker-ask": ask_broker_call,
        "bookie-frames": ask_bookie_frames,
        "bookie-grpc": ask_bookie_grpc,
        "metadata": ask_metadata,
        "metadata-node": ask_metadata_node,
        "sql-http": ask_sql_by_http,
        "sql-frames": ask_sql_by_frames,
        "socket-own": ask_own_socket,
        "socket-other": ask_foreign_socket,
    }
    if door in fort.urls:
        return ask_http(fort, door, action, role, of)
    return asks[door](fort, action, role, of)
