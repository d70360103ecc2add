"""A map of texts that several processes keep equal: the smallest useful state machine.

    python examples/replicated_map.py --url herdbook://127.0.0.1:2181/dev --name map \\
        --listen 127.0.0.1:7001 --data ./map-1

Start it three times with ports and folders of their own, then ask any of them, in lines of JSON:

    $ nc 127.0.0.1 7001
    {"do": "put", "key": "Alma", "value": "brown"}
    {"value":null}
    {"do": "get", "key": "Alma"}
    {"value":"brown"}

Kill whichever process you like: the others go on with the same map. With a folder in place of the
url (`--url ./data`) one process keeps the map by itself, or several on one machine, each with a
`--data` of its own. docs/replicated-state-machines.md explains this file from top to bottom.

Invariants:
- Everything that changes the map is a command, and commands change it in `MapMachine.apply` alone.
- A command is decoded and judged in `apply`; what cannot be done is answered with a refusal.
- A line that was not carried out for certain, nor left undone for certain, says "OutcomeUnknown".
"""

import argparse
import asyncio
import contextlib
import hashlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

import engine
from engine.errors import EngineError, InvalidRequest, NotLeader, OutcomeUnknown
from engine.ledger.settings import ClientSettings
from engine.log.position import Position
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.ports.system_workers import ThreadWorkers
from engine.replica.contract import ReadRows, Rows
from engine.replica.entries import Request
from engine.replica.replica import Replica
from engine.state.rocks import open_rocks

KEY_BYTES_MAX: Final = 1_000
VALUE_BYTES_MAX: Final = 1_000_000
PAGE_ROWS: Final = 1_000
CLEAR_ROWS: Final = 5_000
"""No command takes long: nobody else is answered meanwhile, on no replica."""
DIGEST_ROWS: Final = 5_000
CALL_TIMEOUT_S: Final = 5.0
LOOK_PAUSE_S: Final = 0.05
READS: Final = ("get", "size", "status")
LINE_BYTES_MAX: Final = 8 * 1024 * 1024

# What can be done to a map ----------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Set a key; the answer is the value before."""

    key: str
    value: str


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Remove a key; the answer is the value before."""

    key: str


class CompareAndSet(msgspec.Struct, frozen=True, array_like=True, tag="compare and set"):
    """Set a key, if its value is the expected one (None: if it has none); answers whether it was.

    The new value None removes the key.
    """

    key: str
    expected: str | None
    value: str | None


class Clear(msgspec.Struct, frozen=True, array_like=True, tag="clear"):
    """Remove keys in their order, from the first one over `above` on, `CLEAR_ROWS` at most.

    The answer is the last one if there may be more: go on above it. None: there are no more.
    """

    above: str | None = None


Command = Put | Delete | CompareAndSet | Clear
Value = str | int | bool | None


class Answer(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What came of a command: a value, or why it was refused."""

    value: Value = None
    refusal: str = ""


encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode

# The state machine ------------------------------------------------------------------------------

_KEYS, _KEYS_END, _SIZE = b"k", b"l", b"size"


class MapMachine:
    """Applies commands to rows: b"k" and the key in UTF-8 hold the value, b"size" how many."""

    level: Final = 1

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do a command. Any bytes are answered, since every replica gets the same ones."""
        try:
            wanted = decode_command(command)
        except msgspec.MsgspecError as error:
            return encode(Answer(refusal=f"not a command: {error}"))
        if isinstance(wanted, Clear):
            return encode(_clear(rows, wanted.above))
        value = None if isinstance(wanted, Delete) else wanted.value
        row, new = _KEYS + wanted.key.encode(), None if value is None else value.encode()
        if len(row) > 1 + KEY_BYTES_MAX or (new is not None and len(new) > VALUE_BYTES_MAX):
            return encode(Answer(refusal="too long"))
        found = rows.get(row)
        before = None if found is None else found.decode()
        if not isinstance(wanted, CompareAndSet):
            _set(rows, row, found, new)
            return encode(Answer(before))
        if before != wanted.expected:
            return encode(Answer(False))
        _set(rows, row, found, new)
        return encode(Answer(True))


def _set(rows: Rows, row: bytes, found: bytes | None, new: bytes | None) -> None:
    if new is not None:
        rows.put(row, new)
    elif found is not None:
        rows.delete(row)
    if (found is None) != (new is None):
        rows.put(_SIZE, b"%d" % (_size(rows) + (1 if found is None else -1)))


def _clear(rows: Rows, above: str | None) -> Answer:
    # Not from the start again: what is gone would be stepped over each time.
    page = rows.scan(_first_above(above), _KEYS_END, CLEAR_ROWS)
    for row, _ in page:
        rows.delete(row)
    if page:
        rows.put(_SIZE, b"%d" % (_size(rows) - len(page)))
    return Answer(page[-1][0][1:].decode() if len(page) == CLEAR_ROWS else None)


def _first_above(key: str | None) -> bytes:
    return _KEYS if key is None else _KEYS + key.encode() + b"\x00"


def _size(rows: ReadRows) -> int:
    return int(rows.get(_SIZE) or b"0")


def _get(rows: ReadRows, key: str) -> str | None:
    found = rows.get(_KEYS + key.encode())
    return None if found is None else found.decode()


def _page(rows: ReadRows, above: str | None) -> list[tuple[str, str]]:
    page = rows.scan(_first_above(above), _KEYS_END, PAGE_ROWS)
    return [(row[1:].decode(), value.decode()) for row, value in page]


def _digest(rows: ReadRows) -> str:
    """Of the size and the first rows: a status is asked for often, and the loop waits for it."""
    first = rows.scan(_KEYS, _KEYS_END, DIGEST_ROWS)
    return hashlib.blake2b(encode((_size(rows), first)), digest_size=8).hexdigest()


# The map in a program ---------------------------------------------------------------------------


class Refused(InvalidRequest):
    """A command cannot be done, whenever it is sent. Nothing was changed."""


class ReplicatedMap:
    """A map on a replica. Every method raises `NotLeader` where another replica leads."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    async def get(self, key: str) -> str | None:
        """The newest value, or None."""
        return await self.replica.read(lambda rows: _get(rows, key))

    async def size(self) -> int:
        """How many keys there are."""
        return await self.replica.read(_size)

    async def items(self) -> AsyncIterator[tuple[str, str]]:
        """All keys with their values, in order; each page of them as it is when its turn comes."""
        page = await self.replica.read(partial(_page, above=None))
        while page:
            for item in page:
                yield item
            above = page[-1][0]
            page = await self.replica.read(partial(_page, above=above))

    async def do(self, command: Command, request: Request | None = None) -> Value:
        """Carry a command out; durable and applied when it returns.

        Raises `Refused`, and what `Replica.propose` raises.
        """
        answer = decode_answer(await self.replica.propose(encode(command), request=request))
        if answer.refusal:
            raise Refused(answer.refusal)
        return answer.value

    async def put(self, key: str, value: str) -> Value:
        """Set a key; returns the value before."""
        return await self.do(Put(key, value))

    async def delete(self, key: str) -> Value:
        """Remove a key; returns the value before."""
        return await self.do(Delete(key))

    async def compare_and_set(self, key: str, expected: str | None, value: str | None) -> bool:
        """Set a key if it has the expected value; whether it had."""
        return bool(await self.do(CompareAndSet(key, expected, value)))

    async def clear(self) -> None:
        """Remove everything that is there now, by several commands if it is much."""
        above = await self.do(Clear())
        while isinstance(above, str):
            above = await self.do(Clear(above))


# The map on a socket ----------------------------------------------------------------------------


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request. `session`, `sequence` and `floor` make a retry safe; see `Request`."""

    do: str
    key: str = ""
    value: str | None = None
    expected: str | None = None
    session: tuple[int, int] | None = None
    sequence: int = 0
    floor: int = 0
    stale: bool = False
    """Of get and size: answer from this replica, whoever leads."""
    forwarded: bool = False
    """Another replica passed it on; it is not passed on again."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer. `error` is the class of the error, `leader` where to ask instead."""

    value: str | int | bool | tuple[int, int] | dict[str, str] | None
    error: str = ""
    message: str = ""
    leader: str = ""


decode_line = msgspec.json.Decoder(Line).decode
decode_reply = msgspec.json.Decoder(Reply).decode


class MapServer:
    """Answers lines, or passes them on to the replica that leads."""

    def __init__(self, replica: Replica) -> None:
        self._map = ReplicatedMap(replica)
        self._replica = replica

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a line, its answer, the next line."""
        leaders: dict[str, MapConnection] = {}
        try:
            while raw := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(raw, leaders)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the client went away, or its line has no end
        finally:
            for connection in leaders.values():
                connection.close()
            writer.close()

    async def _answer(self, raw: bytes, leaders: "dict[str, MapConnection]") -> Reply:
        try:
            line = decode_line(raw)
        except msgspec.MsgspecError as error:
            return Reply(None, "InvalidRequest", str(error))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return Reply(await self._carry_out(line))
        except NotLeader as error:
            if error.leader in ("", self._replica.address) or line.forwarded:
                return Reply(None, "NotLeader", str(error), error.leader)
            return await self._pass_on(line, error.leader, leaders)
        except EngineError as error:
            kind = OutcomeUnknown if isinstance(error, OutcomeUnknown) else type(error)
            return Reply(None, kind.__name__, str(error), self._replica.leader)
        except TimeoutError:
            late = "DeadlineExceeded" if line.do in READS else "OutcomeUnknown"
            return Reply(None, late, "no answer in time", self._replica.leader)

    async def _pass_on(self, line: Line, leader: str, leaders: "dict[str, MapConnection]") -> Reply:
        """What the leader answers; who waits for it waits no longer than it is the leader."""
        asking = asyncio.create_task(self._ask(line, leader, leaders))
        deposed = asyncio.create_task(self._until_deposed(leader))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await asyncio.wait({asking, deposed}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    return asking.result()
            error: Exception = EOFError("another one leads")
        except (OSError, TimeoutError, EOFError, msgspec.MsgspecError) as problem:
            error = problem
        finally:
            asking.cancel()
            deposed.cancel()
            await asyncio.gather(asking, deposed, return_exceptions=True)
        now = self._replica.leader
        if leader not in leaders:
            return Reply(None, "NotLeader", f"the leader at {leader} cannot be reached", now)
        leaders.pop(leader).close()
        # What only looks has no outcome that could be unknown.
        kind = "NotLeader" if line.do in READS else "OutcomeUnknown"
        return Reply(None, kind, f"the leader at {leader} went away: {error!r}", now)

    async def _ask(self, line: Line, leader: str, leaders: "dict[str, MapConnection]") -> Reply:
        if leader not in leaders:
            leaders[leader] = await MapConnection.open(leader)
        return await leaders[leader].ask(msgspec.structs.replace(line, forwarded=True))

    async def _until_deposed(self, leader: str) -> None:
        while self._replica.leader in ("", leader):  # noqa: ASYNC110 - a replica tells of no change
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _carry_out(
        self, line: Line
    ) -> str | int | bool | tuple[int, int] | dict[str, str] | None:
        """What a line asks for. Raises `InvalidRequest`, and what the map raises."""
        request = line.session and Request(Position(*line.session), line.sequence, line.floor)
        if line.do == "get" and line.stale:
            return self._replica.stale_read(lambda rows: _get(rows, line.key))[0]
        if line.do == "get":
            return await self._map.get(line.key)
        if line.do == "size":
            return self._replica.stale_read(_size)[0] if line.stale else await self._map.size()
        if line.do == "put" and line.value is not None:
            return await self._map.do(Put(line.key, line.value), request)
        if line.do == "delete":
            return await self._map.do(Delete(line.key), request)
        if line.do == "compare and set":
            wanted = CompareAndSet(line.key, line.expected, line.value)
            return await self._map.do(wanted, request)
        if line.do == "clear":
            return await self._map.do(Clear(line.key or None), request)
        if line.do == "session":
            return await self._replica.open_session()
        if line.do == "status":
            return self._status()
        raise InvalidRequest(f"nothing that can be done: {line.do!r}")

    def _status(self) -> dict[str, str]:
        """How this replica does; replicas at one position have one digest."""
        replica = self._replica
        digest, (ledger, entry) = replica.stale_read(_digest)
        return {
            "role": replica.role.value,
            "leader": replica.leader,
            "epoch": f"{replica.epoch}",
            "position": f"{ledger}:{entry}",
            "digest": digest,
        }


class MapConnection:
    """A connection to one server. Made by `open`; one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(address: str) -> "MapConnection":
        """Connect to "host:port". Raises `OSError`."""
        host, _, port = address.rpartition(":")
        return MapConnection(*await asyncio.open_connection(host, int(port), limit=LINE_BYTES_MAX))

    async def ask(self, line: Line) -> Reply:
        """Send a line and wait for its answer.

        Raises `OSError`, `EOFError`: it may have arrived.
        """
        self._writer.write(msgspec.json.encode(line) + b"\n")
        await self._writer.drain()
        answer = await self._reader.readline()
        if not answer.endswith(b"\n"):
            raise EOFError("the server went away")
        return decode_reply(answer)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


# One process ------------------------------------------------------------------------------------


@asynccontextmanager
async def open_replica(
    url: str,
    name: str,
    listen: str,
    data: Path,
    settings: ClientSettings | None = None,
    zookeeper: ZooKeeperSettings | None = None,
) -> AsyncIterator[Replica]:
    """A replica of the map, in a cluster or on a folder. `settings` are for a cluster's client.

    It is elected there, too: another process may open the same folder, and only one of them can
    lead. `elect=False` is for a log that no other replica can reach.
    Raises what `engine.connect`, `engine.open` and `Replica.open` raise.
    """
    clustered = url.startswith("herdbook://")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            engine.connect(url, settings=settings, zookeeper=zookeeper)
            if clustered
            else engine.open(url)
        )
        workers = ThreadWorkers(asyncio.get_running_loop())
        stack.push_async_callback(workers.close)
        state = await open_rocks(data, workers)
        replica = await Replica.open(
            client,
            name,
            MapMachine(),
            state,
            address=listen,
        )
        stack.push_async_callback(replica.close)
        yield replica


async def run(
    url: str,
    name: str,
    listen: str,
    data: Path,
    settings: ClientSettings,
    zookeeper: ZooKeeperSettings,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with open_replica(url, name, listen, data, settings, zookeeper) as replica:
        host, _, port = listen.rpartition(":")
        serve = MapServer(replica).serve
        server = await asyncio.start_server(serve, host, int(port), limit=LINE_BYTES_MAX)
        async with server:
            print(f"{name} is served at {listen}", flush=True)
            await ended.wait()
            server.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True, help="herdbook://HOST:PORT/PATH, or a folder")
    parser.add_argument("--name", default="map", help="of the log: one map each")
    parser.add_argument("--listen", default="127.0.0.1:7001", help="where clients connect")
    parser.add_argument("--data", type=Path, required=True, help="the folder of this replica")
    parser.add_argument("--lease-ms", type=int, default=ClientSettings().lease_ms)
    parser.add_argument("--session-ms", type=int, default=ZooKeeperSettings().session_timeout_ms)
    given = parser.parse_args()
    settings = ClientSettings(lease_ms=given.lease_ms)
    zookeeper = ZooKeeperSettings(session_timeout_ms=given.session_ms)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(given.url, given.name, given.listen, given.data, settings, zookeeper))


if __name__ == "__main__":
    main()
