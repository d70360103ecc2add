"""What becomes of tablespaces that are dropped, or cannot be run, while nodes are cut off."""

import asyncio
from itertools import pairwise

import pytest

from engine.errors import RecoveryIncomplete, StateDiverged
from engine.ledger.client import LedgerClient
from engine.state.contract import State
from herd.nodes import auditor
from herd.nodes.dropping import sweep_dropped
from herd.nodes.facts import SPACES, SpaceFact, encode_fact
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


def test_a_removal_that_keeps_failing_delays_nothing_else_and_backs_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried_s: list[float] = []
    usual = sweep_dropped

    async def script(yard: Yard) -> None:
        async def hangs(client: LedgerClient, name: str, uuid: str) -> int:
            if name != "farm":
                return await usual(client, name, uuid)
            tried_s.append(yard.loop.time())
            await elapse(5.0)
            raise RecoveryIncomplete("no bookie answers")

        monkeypatch.setattr(auditor, "sweep_dropped", hangs)
        await yard.add("a", "b")
        for name in ("farm", "other"):
            await yard.commands.create(name, expected=1)
            await yard.led(name)
        await yard.commands.drop("farm")
        await yard.until(lambda: len(tried_s) == 1)
        # While it hangs, a tablespace is created and another one is removed.
        await yard.commands.create("fresh", expected=1)
        assert await yard.until(lambda: len(yard.leaders("fresh")) == 1) < 3.0
        await yard.commands.drop("other")

        async def gone() -> None:
            while "other" in await yard.own.store.children(SPACES):
                await elapse(0.1)

        await asyncio.wait_for(gone(), 3.0)
        await elapse(60.0)

    in_yard(script)
    pauses_s = [after - before - 5.0 for before, after in pairwise(tried_s)]
    assert len(pauses_s) >= 3 and pauses_s[0] < 2.0
    assert all(after > 1.5 * before for before, after in pairwise(pauses_s))
    assert caplog.text.count("no bookie answers") == 1, "one warning for the same reason"


def test_a_backlog_of_dropped_tablespaces_is_removed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(yard: Yard) -> None:
        running = most = 0

        async def slowly(client: LedgerClient, name: str, uuid: str) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await elapse(0.5)
            running -= 1
            return await sweep_dropped(client, name, uuid)

        monkeypatch.setattr(auditor, "sweep_dropped", slowly)
        await yard.add("a", "b")
        for number in range(20):
            fact = SpaceFact(f"uuid {number}", 1, 1, ("a",), dropped=True)
            await yard.own.store.create(f"{SPACES}/farm{number}", encode_fact(fact))

        async def gone() -> None:
            while await yard.own.store.children(SPACES):
                await elapse(0.1)

        await asyncio.wait_for(gone(), 10.0)
        assert most == 8

    in_yard(script)


def test_a_tablespace_is_not_swept_while_one_of_its_replicas_is_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=1)
        leader = yard.machines[await yard.led()]
        swept: list[str] = []
        usual = sweep_dropped

        async def sweeps(client: LedgerClient, name: str, uuid: str) -> int:
            swept.append(name)
            return await usual(client, name, uuid)

        monkeypatch.setattr(auditor, "sweep_dropped", sweeps)
        space, on = leader.space("farm"), asyncio.Event()
        assert space is not None
        closes = space.close

        async def slowly() -> None:
            await on.wait()
            await closes()

        space.close = slowly  # type: ignore[method-assign]
        await yard.commands.drop("farm")
        await yard.until(lambda: leader.node.hosted("farm") is None)
        await elapse(3.0)
        assert not swept
        on.set()
        await yard.until(lambda: bool(swept))

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
