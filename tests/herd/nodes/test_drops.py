"""What becomes of tablespaces that are dropped, or cannot be run, while nodes are cut off."""

import asyncio

from engine.errors import StateDiverged
from engine.state.contract import State
from herd.nodes.facts import SPACES
from tests.herd.nodes.yard import SETTINGS, Bank, Yard, in_yard
from tests.simulation.virtual import elapse

GRACE_S = SETTINGS.grace_ms / 1000


def test_a_node_that_was_cut_off_while_its_tablespace_was_dropped_forgets_it() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=2, nodes=["a", "b"])
        await yard.commands.create("other", expected=3)
        await Bank(yard).open()
        leader = yard.machines[await yard.led()]
        await yard.led("other")
        leader.store.reachable = False
        leader.store.expire()
        await yard.commands.drop("farm")

        async def gone() -> None:
            while await yard.own.store.children(SPACES) != ["other"]:
                await elapse(0.1)

        await asyncio.wait_for(gone(), 30.0)
        assert leader.space("farm") is not None, "it cannot know"
        leader.store.reachable = True
        await yard.until(lambda: leader.space("farm") is None, "it forgets it")
        await yard.until(lambda: len(leader.states.wiped) == 1, "its state is wiped")
        await yard.led("other")
        await elapse(5.0)
        await yard.commands.create("farm", expected=3)
        machine = yard.machines[await yard.led()]
        space = machine.space("farm")
        assert space is not None and space.catalog.names == []
        await yard.replicas_on("a", "b", "c")

    in_yard(script)


def test_a_replica_that_cannot_be_started_is_made_anew_elsewhere() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        broken = yard.machines["b"]

        async def refuse(uuid: str) -> State:
            raise OSError("the disk is broken")

        usual = broken.states.open
        broken.states.open = refuse  # type: ignore[method-assign]
        await yard.commands.create("farm", expected=2, nodes=["a", "b"])
        await yard.led(by="a")
        made_s = yard.loop.time()
        await yard.replicas_on("a", "c")
        assert yard.loop.time() - made_s >= GRACE_S - 1.0
        broken.states.open = usual  # type: ignore[method-assign]
        await elapse(GRACE_S)
        assert set((await yard.fact()).replicas) == {"a", "c"}
        hosted = broken.node.hosted("farm")
        assert hosted is None

    in_yard(script)


def test_a_replica_that_stops_for_good_is_started_again() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        bank = Bank(yard)
        await bank.open()
        leader = await yard.led()
        other = yard.machines["b" if leader == "a" else "a"]
        space = other.space("farm")
        assert space is not None
        # As one whose state was found to differ: it is thrown away and read anew.
        space.replica._fail(StateDiverged("its hash is another"))
        await yard.until(lambda: other.space("farm") not in (None, space), "it is there again")
        assert len(other.states.wiped) == 1
        await yard.until(lambda: bank.total(other.name) == 1_000, "it has caught up")

    in_yard(script)
