"""Where states live in tests: nowhere, in a folder, in a simulated machine."""

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

from engine.ports.system_workers import ThreadWorkers
from engine.state.contract import State
from engine.state.memory import MemoryState
from engine.state.rocks import open_rocks
from tests.engine.state.state_contract import Scenario
from tests.simulation.disk import SimDisk
from tests.simulation.loop import Process, SimLoop, new_loop
from tests.simulation.state import SimStates
from tests.simulation.workers import SimWorkers


class MemoryMachine:
    """A process without a disk."""

    lasting = False

    async def open(self) -> MemoryState:
        return MemoryState()

    async def crash(self, state: State) -> MemoryState:
        return MemoryState()

    async def wait(self) -> None:
        await asyncio.sleep(0)


class RocksMachine:
    """A folder; a crash is a copy of the files as they lie there at that moment."""

    lasting = True

    def __init__(self, folder: Path, workers: ThreadWorkers) -> None:
        self._folder = folder
        self._crashes = 0
        self._workers = workers
        self._left_behind: list[State] = []

    @property
    def path(self) -> Path:
        return self._folder / f"state-{self._crashes}"

    async def open(self) -> State:
        return await open_rocks(self.path, self._workers)

    async def crash(self, state: State) -> State:
        self._left_behind.append(state)
        before = self.path
        self._crashes += 1
        copy_at_a_moment(before, self.path)
        return await self.open()

    async def wait(self) -> None:
        await asyncio.sleep(0)

    async def bury(self) -> None:
        """Close what the crashes left open."""
        for state in self._left_behind:
            await state.close()


def copy_at_a_moment(source: Path, target: Path) -> None:
    """Copy a folder that RocksDB has open, as it is while no file comes, goes or grows."""
    while True:
        before = sizes(source)
        for name in before:
            # What RocksDB removes meanwhile makes this try one of those that do not count.
            with contextlib.suppress(FileNotFoundError):
                target.mkdir(exist_ok=True)
                shutil.copyfile(source / name, target / name)
        if sizes(source) == before == sizes(target):
            return
        shutil.rmtree(target)


def sizes(folder: Path) -> dict[str, int]:
    """The files that make a state, and how long they are."""
    found = {}
    for file in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if not file.name.startswith("LO"):
                found[file.name] = file.stat().st_size
    return found


class SimMachine:
    """A simulated machine: the threads of a crashed process never run again."""

    lasting = True

    def __init__(self, seed: int) -> None:
        self.loop = new_loop(seed)
        self._rng = random.Random(seed)
        self.states = SimStates(self._rng)
        self._start()

    def _start(self) -> None:
        self._process = Process("machine")
        disk = SimDisk(self._rng)
        self.workers = SimWorkers(self.loop, self._process, disk, self._rng)

    async def open(self) -> State:
        return self.states.open(self.workers)

    async def crash(self, state: State) -> State:
        self.loop.kill(self._process)
        self.states.crash()
        self._start()
        # The scenario may have been woken by the process that it has just ended.
        self.loop.current = self._process
        return await self.open()

    async def wait(self) -> None:
        await pass_time(self._rng.random() * 0.004)


async def pass_time(seconds: float) -> None:
    """Wait in the virtual time of a simulated machine."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


def run_in_memory(scenario: Scenario) -> None:
    """Run a scenario with states in memory."""
    asyncio.run(_bounded(scenario))


async def _bounded(scenario: Scenario) -> None:
    async with asyncio.timeout(60):
        await scenario(MemoryMachine())


def run_in_rocks(folder: Path, scenario: Scenario) -> None:
    """Run a scenario with states in a folder."""

    async def run() -> None:
        async with asyncio.timeout(60):
            workers = ThreadWorkers(asyncio.get_running_loop())
            machine = RocksMachine(folder, workers)
            await scenario(machine)
            await machine.bury()
            await workers.close()

    asyncio.run(run())


def run_simulated(seed: int, scenario: Scenario) -> None:
    """Run a scenario with states on a simulated machine."""
    machine = SimMachine(seed)
    machine.loop.run(_in_sim(machine, scenario), until_s=600)


async def _in_sim(machine: SimMachine, scenario: Scenario) -> None:
    await scenario(machine)
