"""Machines that run a replica each, of a state machine of registers.

Invariants:
- A node runs the product's replica unchanged; a crashed one's process never runs again.
- Clocks of machines run at different speeds, within the drift that replicas are told of.
- What a replica acknowledges goes to the oracle in the instant in which it is answered.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from engine.errors import CannotRead, EngineError, StateFailed, Unavailable
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.log.position import Position
from engine.log.settings import LogSettings
from engine.replica.contract import ReadRows, Role, Rows
from engine.replica.entries import Request
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings
from engine.state.stored import StateSettings, StoredState
from tests.simulation.disk import SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.network import SimTransport
from tests.simulation.nodes import ClientNode, SimClock, World
from tests.simulation.oracles import Violation
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.state import SimStates
from tests.simulation.workers import SimWorkers

LOG: Final = "registers"
DRIFT: Final = 0.05
_RETRY_S: Final = 0.5
_WALL_APART_S: Final = 4.0


class Note(msgspec.Struct, frozen=True, array_like=True):
    """A command: write a register, or only if it holds what is expected."""

    number: int
    register: str
    value: str
    conditional: bool = False
    expected: str | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it."""

    done: bool
    before: str | None


encode = msgspec.msgpack.Encoder().encode
decode_note = msgspec.msgpack.Decoder(Note).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


class RegisterMachine:
    """Registers, and a mark for each command that was done. It tells the oracle what it applies."""

    def __init__(self, oracle: ReplicaOracle, process: str) -> None:
        self._oracle = oracle
        self._process = process

    @property
    def level(self) -> int:
        """Of the commands."""
        return 1

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do one."""
        note = decode_note(command[: len(command) - _padding(command)])
        row, mark = b"r" + note.register.encode(), b"m%d" % note.number
        found = rows.get(row)
        before = None if found is None else found.decode()
        done = not note.conditional or before == note.expected
        if rows.get(mark) is not None:
            raise Violation(f"{self._process}: command {note.number} is done already")
        rows.put(mark, b"")
        if done:
            rows.put(row, note.value.encode())
        result = encode(Answer(done, before))
        self._oracle.on_applied(self._process, position, note.number, result)
        return result


def padded(note: Note, size_bytes: int) -> bytes:
    """A command of at least some size: its end says how much of it is none."""
    body = encode(note)
    padding_bytes = max(size_bytes - len(body), 4)
    return body + bytes(padding_bytes - 4) + padding_bytes.to_bytes(4)


def _padding(command: bytes) -> int:
    return int.from_bytes(command[-4:])


def read_register(rows: ReadRows, register: str) -> str | None:
    """What a register holds."""
    found = rows.get(b"r" + register.encode())
    return None if found is None else found.decode()


class DriftingClock(SimClock):
    """A clock that runs a little too fast or too slow; its wall clock is `wall_s` off besides."""

    def __init__(
        self,
        loop: SimLoop,
        skew_s: float,
        speed: float,
        wall_s: float,
        ahead_s: float | None = None,
    ) -> None:
        super().__init__(loop, skew_s, ahead_s)
        self._speed = speed
        self._wall_s = wall_s

    def monotonic(self) -> float:
        return super().monotonic() * self._speed

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._wall_s * 1000)


@dataclass(frozen=True)
class ReplicaPlan:
    """How the replicas of one run behave."""

    client: ClientSettings
    log: LogSettings
    replica: ReplicaSettings
    state: StateSettings


class ReplicaNode(ClientNode):
    """A machine that runs one replica."""

    runs = "replica"
    errors: type[Exception] = EngineError
    """What a start raises that fails."""

    def __init__(self, world: World, name: str, plan: ReplicaPlan, oracle: ReplicaOracle) -> None:
        self.plan = plan
        self.oracle = oracle
        self.replica: Replica | None = None
        self.up = False
        self.state_fails = False
        rng = world.rng(f"{name} clock")
        # Two clocks differ by less than the drift.
        self._speed = 1 + DRIFT * (rng.random() - 0.5) * 0.95
        wall_s = _WALL_APART_S * (rng.random() - 0.5) * 2
        self._wall_s = 0.0 if world.walls_differ else wall_s
        self.states = SimStates(world.rng(f"{name} state"))
        self._state: StoredState | None = None
        super().__init__(world, name, plan.client, lambda node: None)

    def start(self) -> None:
        """Power on; the replica runs a little later."""
        assert not self.up
        self.up = True
        world = self.world
        self.process = world.process(self.name)
        self.store = world.store(self.process)
        skew_s = float(len(world.processes))
        self.clock = DriftingClock(
            world.loop, skew_s, self._speed, self._wall_s, world.wall_s(self.name)
        )
        self.client = LedgerClient(
            store=self.store,
            transport=SimTransport(world.network, self.name, self.process),
            clock=self.clock,
            rng=world.rng(self.name),
            settings=self.settings,
        )
        world.loop.spawn(self.process, self._serve(), f"{self.name} start")

    async def _serve(self) -> None:
        """Start the replica; try again, as a supervisor does, while something is away."""
        process = self.process
        while True:
            workers = SimWorkers(
                self.world.loop, process, SimDisk(self.world.rng("disk")), self.world.rng("workers")
            )
            try:
                state = self.states.open(workers, self.plan.state)
            except OSError:
                # Half a restoration is there, and the disk takes no writes.
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                self.replica = await self._open(state)
            except self.errors as error:
                reason = error if isinstance(error, EngineError) else error.__cause__
                if not isinstance(reason, Unavailable | CannotRead | StateFailed):
                    raise Violation(f"{self.name} does not start: {error!r}") from error
                self.world.trace.event(f"{self.runs} not open", self.name, type(error).__name__)
                await self._close(state)
                await asyncio.sleep(_RETRY_S)
            else:
                self._state = state
                self.oracle.acknowledgements.listen(self.replica, process.name)
                self.world.trace.event(self.runs, process.name, *self.replica.position)
                return

    async def _open(self, state: StoredState) -> Replica:
        return await Replica.open(
            self.client,
            LOG,
            RegisterMachine(self.oracle, self.process.name),
            state,
            address=self.name,
            replica_id=self.name,
            settings=self.plan.replica,
            log_settings=self.plan.log,
        )

    async def _close(self, state: StoredState) -> None:
        try:
            await state.close()
        except StateFailed:
            self.world.trace.event("state not closed", self.name)

    def crash(self) -> None:
        """The process ends in mid-air; what its state had not flushed goes, in part or whole."""
        assert self.up
        self.up = False
        self.replica = None
        self.kill()
        self.states.crash()

    def wipe(self) -> None:
        """All that the machine stored is gone."""
        assert not self.up
        self.states.wipe()

    @property
    def serves(self) -> bool:
        """Whether what it runs has started."""
        return self.replica is not None

    async def stop(self) -> None:
        """End in good order, as for an upgrade."""
        replica = self.replica
        assert replica is not None
        self.replica = None
        try:
            await replica.close()
        except StateFailed:
            self.world.trace.event("state not closed", self.name)

    def look(self) -> None:
        """Compare this replica's hash with the others', and see that it is well."""
        replica = self.replica
        if replica is None or not self.up:
            return
        if replica.role is Role.FAILED and not self.state_fails:
            raise Violation(f"{self.process.name} has failed: {replica.failure!r}")
        applier = replica._applier
        if replica._following.restoring:
            # Half a snapshot: the state says nothing before it is whole, or begun anew.
            return
        if not applier.failed and not applier._parts:
            self.oracle.on_hash(self.process.name, applier.cursor, applier.summary.hash)

    # What clients ask for; called in this node's process

    async def propose(self, note: Note, size_bytes: int, request: Request | None) -> bytes:
        """Raises what the replica raises."""
        replica = self._running()
        leading = replica._leading
        result = await replica.propose(padded(note, size_bytes), request=request)
        assert leading is not None
        epoch = leading.writer.epoch
        self.oracle.on_answered(self.process.name, epoch, note.number, result)
        return result

    async def read(self, register: str) -> str | None:
        """What a register holds now."""
        return await self._running().read(lambda rows: read_register(rows, register))

    async def open_session(self) -> Position:
        """A session."""
        return await self._running().open_session()

    def _running(self) -> Replica:
        if self.replica is None:
            raise Unavailable(f"{self.name} is not there yet")
        return self.replica
