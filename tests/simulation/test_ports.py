"""The simulated disk and workers are held to the contracts of the real ones."""

import asyncio
import random

import pytest

from engine.metadata.contract import MetadataStore
from engine.metadata.memory import MemoryTree
from engine.ports.disk import Disk
from tests.engine.metadata.store_contract import Scenario as StoreScenario
from tests.engine.metadata.store_contract import StoreContract
from tests.engine.ports.disk_contract import DiskContract
from tests.engine.ports.workers_contract import Scenario, WorkersContract
from tests.simulation.disk import PowerLoss, SimDisk
from tests.simulation.loop import Deadlock, Process, RanTooLong, SimLoop, new_loop
from tests.simulation.metadata import MetadataFaults, SimStore
from tests.simulation.network import Network, NetworkFaults
from tests.simulation.nodes import World
from tests.simulation.running import check_tasks
from tests.simulation.trace import Trace
from tests.simulation.workers import SimWorkers


class TestSimDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> Disk:
        return SimDisk(random.Random(1))


class TestSimWorkers(WorkersContract):
    def run_with_workers(self, scenario: Scenario) -> None:
        loop = new_loop(1)
        rng = random.Random(1)

        async def main() -> None:
            await scenario(SimWorkers(loop, loop.world, SimDisk(rng), rng))

        loop.run(main(), until_s=60)


class TestSimStore(StoreContract):
    def run_with_sessions(self, scenario: StoreScenario) -> None:
        loop = new_loop(1)
        tree = MemoryTree("cluster")
        trace = Trace(loop)

        async def open_session() -> MetadataStore:
            rng = random.Random(1)
            return SimStore(tree, loop, loop.world, rng, trace, MetadataFaults())

        async def main() -> None:
            await scenario(open_session)

        loop.run(main(), until_s=60)

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, SimStore)
        store.expire()


def test_a_power_loss_keeps_all_that_was_synced_and_no_more_than_was_written() -> None:
    rng = random.Random(7)
    sizes = set()
    for _ in range(200):
        disk = SimDisk(rng)
        file = disk.open_append("file", create=True)
        disk.sync_folder("")
        file.write([b"a" * 1000])
        file.sync()
        file.write([b"b" * 2000])
        disk.lose_power()
        data = disk.read("file", 0, 9999)
        assert data[:1000] == b"a" * 1000
        assert len(data) <= 3000 and set(data[1000:]) <= set(b"b\0")
        sizes.add(len(data))
    assert {1000, 3000} <= sizes and len(sizes) > 20


def test_zeros_ahead_that_were_synced_are_there_after_a_power_loss_and_others_may_be() -> None:
    rng = random.Random(7)
    synced, unsynced = set(), set()
    for _ in range(100):
        disk = SimDisk(rng)
        file = disk.open_append("file", create=True)
        disk.sync_folder("")
        file.write([b"a" * 100], 200)
        file.sync()
        file.write([b"b" * 50])
        disk.lose_power()
        data = disk.read("file", 0, 999)
        assert data[:100] == b"a" * 100 and set(data[100:150]) <= set(b"b\0")
        synced.add((len(data), set(data[150:]) <= {0}))
        file = disk.open_append("file", create=False)
        file.write([b"c"], 100)
        disk.lose_power()
        unsynced.add(disk.size("file"))
    assert synced == {(300, True)}
    assert {300, 401} <= unsynced


def test_a_new_name_may_vanish_until_its_folder_was_synced() -> None:
    rng = random.Random(7)
    found = set()
    for _ in range(50):
        disk = SimDisk(rng)
        file = disk.open_append("file", create=True)
        file.write([b"a"])
        file.sync()
        disk.lose_power()
        found.add(tuple(disk.names("")))
    assert found == {(), ("file",)}


def test_data_under_a_failed_sync_is_lost_with_the_power_even_after_a_later_sync() -> None:
    disk = SimDisk(random.Random(1))
    file = disk.open_append("file", create=True)
    disk.sync_folder("")
    file.write([b"a"])
    disk.fail_after = 0
    with pytest.raises(OSError):
        file.sync()
    file.write([b"b"])
    file.sync()
    disk.lose_power()
    assert disk.read("file", 0, 9) == b"\0b"


def test_the_machine_can_end_in_the_middle_of_a_batch() -> None:
    disk = SimDisk(random.Random(1))
    file = disk.open_append("file", create=True)
    disk.lose_power_after = 1
    file.write([b"a"])
    with pytest.raises(PowerLoss):
        file.sync()


def test_a_loop_where_nothing_can_happen_any_more_names_who_waits() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="main"):
        new_loop(1).run(main(), until_s=1)


def test_a_loop_that_never_ends_is_stopped_at_its_time() -> None:
    async def main() -> None:
        for _ in range(1_000):
            await asyncio.sleep(1)

    with pytest.raises(RanTooLong):
        new_loop(1).run(main(), until_s=30)


def test_a_paused_process_goes_on_later_and_a_killed_one_never_does() -> None:
    loop = new_loop(1)
    steps: list[str] = []

    async def count(name: str) -> None:
        for step in range(3):
            steps.append(f"{name}{step}")
            await asyncio.sleep(1)

    async def main() -> None:
        paused, killed = Process("paused"), Process("killed")
        loop.spawn(paused, count("paused"), "paused")
        loop.spawn(killed, count("killed"), "killed")
        await asyncio.sleep(0.5)
        loop.pause(paused)
        loop.kill(killed)
        await asyncio.sleep(5)
        assert steps == ["paused0", "killed0"]
        loop.resume(paused)
        await asyncio.sleep(5)

    loop.run(main(), until_s=60)
    assert steps == ["paused0", "killed0", "paused1", "paused2"]


def test_what_is_left_in_mid_air_ends_on_its_own_loop() -> None:
    loop = new_loop(1)
    seen: list[asyncio.AbstractEventLoop] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(asyncio.get_running_loop())

    async def script() -> None:
        asyncio.create_task(for_ever())  # noqa: RUF006 (it is to be left)
        await asyncio.sleep(1)

    loop.run(script(), until_s=10)
    loop.close()
    assert seen == [loop]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_failed_task_of_a_paused_process_is_judged_when_the_process_resumes() -> None:
    loop = new_loop(1)
    world = _world(loop)
    process = world.process("node")

    async def fail() -> None:
        loop.pause(process)
        raise ValueError("told to nobody")

    async def main() -> None:
        loop.spawn(process, fail(), "fails")
        await asyncio.sleep(1.0)
        check_tasks(world)
        loop.resume(process)
        # Somebody may be about to hear of it.
        check_tasks(world)
        await asyncio.sleep(0.1)
        with pytest.raises(ValueError, match="told to nobody"):
            check_tasks(world)

    loop.run(main(), until_s=60)


def test_a_failure_that_a_paused_process_has_not_received_yet_fails_no_run() -> None:
    loop = new_loop(1)
    world = _world(loop)
    process = world.process("node")

    async def fail() -> None:
        loop.pause(process)
        raise ValueError("told to its caller")

    async def hear() -> None:
        with pytest.raises(ValueError, match="told to its caller"):
            await asyncio.gather(fail())

    async def main() -> None:
        hearing = loop.spawn(process, hear(), "hears")
        await asyncio.sleep(1.0)
        check_tasks(world)
        loop.resume(process)
        await asyncio.sleep(1.0)
        check_tasks(world)
        assert hearing.done()

    loop.run(main(), until_s=60)


def _world(loop: SimLoop) -> World:
    trace = Trace(loop)
    network = Network(loop, random.Random(1), trace, NetworkFaults())
    return World(loop, 1, trace, network, MemoryTree("cluster"), MetadataFaults())
