"""Tablespaces on three real nodes: their leader is killed and moved under transfers.

`HERDBOOK_ACCEPTANCE=full` runs the full size, as `make soak` does.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import engine
from herd.nodes import SpaceCommands
from herd.wire.cluster import ClusterHerd, open_cluster
from tests.acceptance.herd_machines import (
    ACCOUNTS,
    START,
    Bank,
    NodeProcess,
    command,
    leader_of,
)
from tests.acceptance.machines import cluster, until

FULL: Final = os.environ.get("HERDBOOK_ACCEPTANCE") == "full"
KILLS: Final = 10 if FULL else 1
PAUSES: Final = 3 if FULL else 1
MOVES: Final = 5 if FULL else 1
CLIENTS: Final = 4
FAILOVER_S_MAX: Final = 5.0
CHROOT: Final = "/herds"
SPACE: Final = "bank"
_BETWEEN: Final = 50


class Running(NamedTuple):
    """What a test works with."""

    nodes: list[NodeProcess]
    herd: ClusterHerd
    commands: SpaceCommands
    url: str


async def test_leaders_are_killed_and_moved_and_no_money_is_lost(tmp_path: Path) -> None:
    async with herds(tmp_path) as (nodes, herd, commands, url):
        ids = await ids_of(nodes, commands)
        await commands.create(SPACE, expected=2, nodes=[nodes[0].address, nodes[1].address])
        bank = Bank(herd, SPACE)
        await bank.open()
        working = [asyncio.create_task(bank.client(f"client {n}")) for n in range(CLIENTS)]
        working += [asyncio.create_task(bank.reader(follower=each)) for each in (False, True)]
        await transfers(bank, _BETWEEN)
        # A third replica begins on an empty disk, and is told apart by nothing.
        await command(url, "add-replica", SPACE, ids[nodes[2].address])
        await until("the added replica follows", partial(follows, commands, ids[nodes[2].address]))
        failovers_s = []
        for misfortune in range(KILLS + PAUSES):
            leader = await leader_of(commands, SPACE, nodes)
            failovers_s.append(await silenced(leader, bank, pause=misfortune >= KILLS))
            await until("the node is back", partial(follows, commands, ids[leader.address]))
            await transfers(bank, _BETWEEN)
        moved_s = [await moved(bank, nodes, commands) for _ in range(MOVES)]
        bank.ending = True
        await asyncio.gather(*working)
        assert await bank.total() == ACCOUNTS * START
        assert min(bank.sums.values()) > 0, bank.sums
        await commanded(url, nodes, commands)
        # What the one that was added last followed is what it leads with.
        await commands.move_leader(SPACE, nodes[2].address)
        await commands.until_led(SPACE, 30_000, nodes[2].address)
        assert await bank.total() == ACCOUNTS * START
    print(
        f"{bank.transfers} transfers, {bank.sums} sums, {bank.refused}; failovers in "
        f"{', '.join(f'{one:.1f}' for one in failovers_s)} s, moves in "
        f"{', '.join(f'{one:.1f}' for one in moved_s)} s"
    )
    assert max(failovers_s) < FAILOVER_S_MAX, failovers_s


async def silenced(leader: NodeProcess, bank: Bank, *, pause: bool) -> float:
    """Kill or pause a leader until another one commits; how long that took. It comes back then."""
    since_s = asyncio.get_running_loop().time()
    if pause:
        leader.pause()
    else:
        leader.kill()
    took_s = await failover(bank, since_s)
    if pause:
        leader.resume()
    else:
        leader.start()
    return took_s


async def moved(bank: Bank, nodes: list[NodeProcess], commands: SpaceCommands) -> float:
    """Move the leader to the next node under load; how long that took."""
    leader = await leader_of(commands, SPACE, nodes)
    other = nodes[(nodes.index(leader) + 1) % 3]
    bank.unknown, before_s = 0, asyncio.get_running_loop().time()
    bank.errors.clear()
    await commands.move_leader(SPACE, other.address)
    await commands.until_led(SPACE, 30_000, other.address)
    took_s = asyncio.get_running_loop().time() - before_s
    await transfers(bank, _BETWEEN)
    assert bank.unknown == 0, "a leader that moves leaves no commit unknown"
    # A store that is late for a whole lease is none of the move's doing.
    heard = [error for error in bank.errors if "lease has run out" not in str(error)]
    assert len(heard) <= CLIENTS, f"more than one error for each client: {heard}"
    assert all(error.retryable for error in bank.errors), bank.errors
    return took_s


async def commanded(url: str, nodes: list[NodeProcess], commands: SpaceCommands) -> None:
    """The commands tell what there is, and what they say comes about."""
    ids = await ids_of(nodes, commands)
    found = {each["name"]: each for each in await command(url, "tablespaces", "--json")}
    assert set(found) == {"default", SPACE}
    assert set(found[SPACE]["replicas"]) == set(ids.values())
    assert found[SPACE]["leader_address"] in ids
    listed = await command(url, "nodes", "--json")
    assert {each["node"]: each["address"] for each in listed} == {b: a for a, b in ids.items()}
    last = ids[nodes[2].address]
    await command(url, "move-leader", SPACE, ids[nodes[0].address])
    await command(url, "remove-replica", SPACE, last)
    [bank] = [each for each in await command(url, "tablespaces", "--json") if each["name"] == SPACE]
    assert last not in bank["replicas"] and bank["expected"] == 2
    assert bank["leader_address"] == nodes[0].address
    # On SIGTERM a node leaves at once, and so does what it says of itself.
    assert await nodes[2].terminate() == 0
    assert last not in {each["node"] for each in await command(url, "nodes", "--json")}
    nodes[2].start()
    assert await ids_of(nodes, commands) == ids, "a node is who it was"
    await command(url, "add-replica", SPACE, nodes[2].address)


async def transfers(bank: Bank, count: int) -> None:
    """Wait for so many more transfers."""
    goal = bank.transfers + count

    async def reached() -> bool:
        return bank.transfers >= goal

    await until(f"{count} more transfers", reached)


async def failover(bank: Bank, since_s: float) -> float:
    """How long after a moment the first transfer that was begun since then was committed."""

    async def committed() -> bool:
        return bank.last_s > since_s

    await until("a transfer is committed by another leader", committed)
    return asyncio.get_running_loop().time() - since_s


async def follows(commands: SpaceCommands, node_id: str) -> bool:
    """Whether a node is there, with a replica that follows closely."""
    nodes = await commands.nodes()
    reports = {each: fact.replicas.get(SPACE) for each, fact in nodes.items()}
    own = reports.get(node_id)
    if own is None or not own.ready:
        return False
    others = [one for each, one in reports.items() if one and one.ready and each != node_id]
    return any(own.ledger == one.ledger for one in others)


async def ids_of(nodes: list[NodeProcess], commands: SpaceCommands) -> dict[str, str]:
    """The ids of all nodes by their addresses, once all are there."""

    async def there() -> bool:
        return len(await commands.nodes()) == len(nodes)

    await until("all nodes are there", there)
    return {fact.address: node_id for node_id, fact in (await commands.nodes()).items()}


@asynccontextmanager
async def herds(folder: Path) -> AsyncIterator[Running]:
    """ZooKeeper, three bookies and three nodes, and a client of them."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(cluster(folder, CHROOT))
        nodes = [NodeProcess(number, folder, url) for number in range(3)]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        client = await stack.enter_async_context(engine.connect(url))
        herd = await stack.enter_async_context(open_cluster(url))
        yield Running(nodes, herd, SpaceCommands(client.store, client.clock, client.rng), url)
