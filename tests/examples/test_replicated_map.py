"""The example: its state machine alone, embedded in a folder, and three servers on one folder."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine
from engine.errors import NotLeader
from engine.log.position import START, Position
from engine.replica.replica import Replica
from engine.state.contract import Row
from engine.state.memory import MemoryState
from examples import replicated_map
from examples.replicated_map import (
    Answer,
    Clear,
    Command,
    CompareAndSet,
    Delete,
    Line,
    MapConnection,
    MapMachine,
    MapServer,
    Put,
    Refused,
    ReplicatedMap,
    Reply,
    decode_answer,
    encode,
    open_replica,
)

FIRST = Position(1, 0)
LEADING_MS = 20_000

keys = st.sampled_from(["", "a", "b", "ä", "a\x00", "k" * 900])
values = st.one_of(st.none(), st.sampled_from(["", "1", "2", "ü" * 100]))
commands = st.one_of(
    st.builds(Put, keys, st.sampled_from(["", "1", "2"])),
    st.builds(Delete, keys),
    st.builds(CompareAndSet, keys, values, values),
    st.builds(Clear, st.one_of(st.none(), keys)),
)
CLEARED = 2


@pytest.fixture
def clear_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_map, "CLEAR_ROWS", CLEARED)


def apply(state: MemoryState, command: Command) -> Answer:
    return decode_answer(MapMachine().apply(state, encode(command), FIRST))


@pytest.mark.usefixtures("clear_two_at_a_time")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commands, max_size=40))
def test_the_state_machine_does_what_a_dictionary_does(drawn: list[Command]) -> None:
    state = MemoryState()
    model: dict[str, str] = {}
    for command in drawn:
        assert apply(state, command) == Answer(_do(model, command))
    rows = {key[1:].decode(): value.decode() for key, value in state.scan(b"k", b"l", 10_000)}
    assert rows == model
    assert int(state.get(b"size") or b"0") == len(model)


def _do(model: dict[str, str], command: Command) -> str | int | bool | None:
    if isinstance(command, Clear):
        above = command.above
        gone = sorted(key for key in model if above is None or key > above)[:CLEARED]
        for key in gone:
            del model[key]
        return gone[-1] if len(gone) == CLEARED else None
    before = model.get(command.key)
    if isinstance(command, CompareAndSet) and before != command.expected:
        return False
    value = None if isinstance(command, Delete) else command.value
    model.pop(command.key, None)
    if value is not None:
        model[command.key] = value
    return True if isinstance(command, CompareAndSet) else before


@given(st.binary(max_size=40))
def test_any_bytes_are_answered_and_never_raise(drawn: bytes) -> None:
    assert msgspec.msgpack.decode(MapMachine().apply(MemoryState(), drawn, FIRST)) is not None


def test_what_is_too_long_is_refused_and_changes_nothing() -> None:
    state = MemoryState()
    assert apply(state, Put("k" * 1_001, "1")).refusal == "too long"
    assert apply(state, Put("k", "1" * 1_000_001)).refusal == "too long"
    assert state.scan(b"\x00") == []


def test_a_clear_goes_on_where_it_ended_and_leaves_nothing() -> None:
    state = MemoryState()
    for number in range(12_000):
        apply(state, Put(f"{number:05}", "x"))
    looks: list[bytes] = []
    scan = state.scan

    def counted(first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        looks.append(first)
        return scan(first, end, limit)

    state.scan = counted  # type: ignore[method-assign]
    assert apply(state, Clear()) == Answer("04999")
    assert apply(state, Clear("04999")) == Answer("09999")
    assert apply(state, Clear("09999")) == Answer(None)
    assert looks == [b"k", b"k04999\0", b"k09999\0"]
    assert scan(b"k", b"l") == [] and state.get(b"size") == b"0"


async def test_two_processes_on_one_folder_have_one_leader_and_one_map(tmp_path: Path) -> None:
    url = str(tmp_path / "ledgers")
    async with (
        open_replica(url, "map", "a:1", tmp_path / "state-1") as one,
        open_replica(url, "map", "b:1", tmp_path / "state-2") as two,
    ):
        leader = await leading([one, two])
        other = two if leader is one else one
        await ReplicatedMap(leader).put("Alma", "brown")
        await other.wait_for(leader.position)
        with pytest.raises(NotLeader):
            await ReplicatedMap(other).put("Alma", "black")
        assert one.epoch == two.epoch == 1


async def test_a_line_that_a_leader_does_not_answer_waits_no_longer_than_it_leads(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path, 1) as (replicas, _):
        await leading(replicas)
        silent = await asyncio.start_server(_hear_and_say_nothing, "127.0.0.1", 0)
        address = "{}:{}".format(*silent.sockets[0].getsockname())
        follower = _Follower(replicas[0], address)
        server = MapServer(follower)  # type: ignore[arg-type]
        for line, kind in (
            (Line("put", "a", "1"), "OutcomeUnknown"), (Line("get", "a"), "NotLeader"),
        ):  # fmt: skip
            follower.leader = address
            leaders: dict[str, MapConnection] = {}
            asking = asyncio.ensure_future(server._answer(msgspec.json.encode(line), leaders))
            async with asyncio.timeout(LEADING_MS / 1000):
                while address not in leaders:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            follower.leader = "elsewhere:1"
            reply = await asyncio.wait_for(asking, replicated_map.CALL_TIMEOUT_S - 1)
            assert (reply.error, reply.leader) == (kind, "elsewhere:1")
            assert not leaders
        silent.close()


async def _hear_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


class _Follower:
    """A replica that follows whom the test says."""

    def __init__(self, replica: Replica, leader: str) -> None:
        self.address = "here:1"
        self.leader = leader
        self._replica = replica

    async def read(self, look: object) -> None:
        raise NotLeader("it follows", self.leader)

    def propose(self, command: bytes, request: object = None) -> None:
        raise NotLeader("it follows", self.leader)


async def test_a_map_in_a_folder_is_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    url, data = str(tmp_path / "ledgers"), tmp_path / "state"
    async with open_replica(url, "map", "", data) as replica:
        await replica.until_leading(LEADING_MS)
        held = ReplicatedMap(replica)
        assert await held.put("Alma", "brown") is None
        assert await held.put("Alma", "black") == "brown"
        assert await held.compare_and_set("Alma", "brown", "white") is False
        assert await held.compare_and_set("Berta", None, "white") is True
        with pytest.raises(Refused):
            await held.put("k" * 2_000, "")
    async with open_replica(url, "map", "", data) as replica:
        await replica.until_leading(LEADING_MS)
        held = ReplicatedMap(replica)
        assert [item async for item in held.items()] == [("Alma", "black"), ("Berta", "white")]
        assert (await held.get("Alma"), await held.size()) == ("black", 2)
        assert await held.delete("Alma") == "black"
        await held.clear()
        assert await held.size() == 0


async def test_three_servers_keep_one_map_and_pass_on_what_only_the_leader_can_do(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path) as (replicas, addresses):
        leader = await leading(replicas)
        others = [place for place, replica in enumerate(replicas) if replica is not leader]
        first = await MapConnection.open(addresses[others[0]])
        second = await MapConnection.open(addresses[others[1]])
        assert await first.ask(Line("put", "Alma", "brown")) == Reply(None)
        assert await second.ask(Line("get", "Alma")) == Reply("brown")
        assert (await second.ask(Line("compare and set", "Alma", "x", "y"))).value is False
        reply = await second.ask(Line("put", "Alma", "black", forwarded=True))
        assert (reply.error, reply.leader) == ("NotLeader", leader.address)
        for replica in replicas:
            await replica.wait_for(leader.position)
        assert await second.ask(Line("get", "Alma", stale=True)) == Reply("brown")
        digests = [await status(address) for address in addresses]
        assert len({one["digest"] for one in digests}) == 1
        first.close()
        second.close()


async def test_a_command_sent_again_with_its_session_is_answered_and_not_done_again(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path, 1) as (replicas, addresses):
        await leading(replicas)
        connection = await MapConnection.open(addresses[0])
        session = (await connection.ask(Line("session"))).value
        assert isinstance(session, tuple)
        again = Line("put", "Alma", "brown", session=session, sequence=1)
        assert await connection.ask(again) == Reply(None)
        assert await connection.ask(Line("put", "Alma", "black")) == Reply("brown")
        assert await connection.ask(again) == Reply(None)
        assert await connection.ask(Line("get", "Alma")) == Reply("black")
        connection.close()


async def test_a_line_that_says_nothing_is_answered_with_an_error(tmp_path: Path) -> None:
    async with servers(tmp_path, 1) as (replicas, addresses):
        await leading(replicas)
        host, _, port = addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for line in (b"nonsense\n", b'{"do":"nothing"}\n', b'{"do":"put","key":"a"}\n'):
            writer.write(line)
            assert json.loads(await reader.readline())["error"] == "InvalidRequest"
        writer.close()


@asynccontextmanager
async def servers(folder: Path, count: int = 3) -> AsyncIterator[tuple[list[Replica], list[str]]]:
    """Replicas with a server each, on the bookies of one folder."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(engine.open(folder, bookies=3))
        replicas, addresses = [], []
        for _ in range(count):
            server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            address = "{}:{}".format(*server.sockets[0].getsockname())
            server.close()
            replica = await Replica.open(
                client, "map", MapMachine(), MemoryState(), address=address
            )
            stack.push_async_callback(replica.close)
            host, _, port = address.rpartition(":")
            serving = await asyncio.start_server(MapServer(replica).serve, host, int(port))
            stack.callback(serving.close)
            replicas.append(replica)
            addresses.append(address)
        yield replicas, addresses


async def leading(replicas: list[Replica]) -> Replica:
    """The first that leads."""
    waiting = [asyncio.create_task(replica.until_leading(LEADING_MS)) for replica in replicas]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    found = [replica for replica in replicas if replica.role.value == "leader"]
    assert len(found) == 1 and found[0].position > START
    return found[0]


async def status(address: str) -> dict[str, str]:
    """What a server says of itself."""
    connection = await MapConnection.open(address)
    value = (await connection.ask(Line("status"))).value
    connection.close()
    assert isinstance(value, dict)
    return value
