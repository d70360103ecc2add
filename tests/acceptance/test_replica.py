"""Three processes of the example on a real cluster: their leader is killed and paused under load.

`HERDBOOK_ACCEPTANCE=full` runs the full size, as `make soak` does.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from examples.replicated_map import Line, MapConnection
from tests.acceptance.machines import cluster, until
from tests.acceptance.map_replicas import MapClient, MapProcess, Recorder
from tests.linearizability import check

FULL: Final = os.environ.get("HERDBOOK_ACCEPTANCE") == "full"
KILLS: Final = 10 if FULL else 2
PAUSES: Final = 5 if FULL else 1
CLIENTS: Final = 4
FAILOVER_S_MAX: Final = 5.0
CHROOT: Final = "/replicas"
_CALLS_BETWEEN: Final = 100
_ASKED_AT_ONCE: Final = 20


async def test_the_leader_is_killed_and_paused_and_every_answer_stays_explicable(
    tmp_path: Path,
) -> None:
    async with replicated_map(tmp_path) as replicas:
        recorder = Recorder()
        await until("a replica leads", lambda: one_leads(replicas))
        clients = [MapClient(f"client {n}", replicas, recorder) for n in range(CLIENTS)]
        working = [asyncio.create_task(client.run()) for client in clients]
        failovers_s: list[float] = []
        for misfortune in range(KILLS + PAUSES):
            await calls(recorder, _CALLS_BETWEEN)
            leader = await the_leader(replicas)
            if misfortune % 3 != 2 or misfortune // 3 >= PAUSES:
                failovers_s.append(await killed(leader, replicas, recorder))
            else:
                failovers_s.append(await paused(leader, replicas, recorder))
        await calls(recorder, _CALLS_BETWEEN)
        recorder.ending = True
        await asyncio.gather(*working)
        await until("all replicas have the same map", lambda: all_equal(replicas))
    print(
        f"{len(recorder.history)} calls beside {KILLS} kills and {PAUSES} pauses, "
        f"{sum(one.unknown for one in recorder.history)} of unknown outcome; failovers in "
        f"{', '.join(f'{one:.1f}' for one in failovers_s)} s"
    )
    assert len(failovers_s) == KILLS + PAUSES
    assert max(failovers_s) < FAILOVER_S_MAX, failovers_s
    witness = check(recorder.history)
    assert witness is None, str(witness)


async def killed(leader: MapProcess, replicas: list[MapProcess], recorder: Recorder) -> float:
    """Kill the leader, wait for another one, start it again; how long the others took."""
    since = asyncio.get_running_loop().time()
    leader.kill()
    found_s = await failover(recorder, since)
    leader.start()
    await until("the killed replica is back", lambda: follows(leader))
    return found_s


async def paused(leader: MapProcess, replicas: list[MapProcess], recorder: Recorder) -> float:
    """Pause the leader until another one has taken writes, and ask the old one as it wakes up."""
    since = asyncio.get_running_loop().time()
    leader.pause()
    found_s = await failover(recorder, since)
    newer = await the_leader(replicas)
    assert newer is not leader
    # The questions lie in the old leader's socket when it wakes up, before it hears anything.
    asked = [await MapConnection.open(leader.address) for _ in range(_ASKED_AT_ONCE)]
    value = f"{since}"
    reply = await newer.ask(Line("put", "pause", value))
    assert reply is not None and not reply.error, reply
    line = Line("get", "pause", forwarded=True)
    asking = [asyncio.create_task(connection.ask(line)) for connection in asked]
    await asyncio.sleep(0)
    leader.resume()
    for told in await asyncio.gather(*asking):
        assert told.error == "NotLeader" or told.value == value, told
    for connection in asked:
        connection.close()
    await until("the paused replica follows", lambda: follows(leader))
    return found_s


async def failover(recorder: Recorder, since: float) -> float:
    """How long after `since` the first write that was begun since then was acknowledged."""
    recorder.first_write_after[since] = math.inf

    async def acknowledged() -> bool:
        return not math.isinf(recorder.first_write_after[since])

    await until("a write is acknowledged by another leader", acknowledged)
    return recorder.first_write_after.pop(since) - since


async def calls(recorder: Recorder, count: int) -> None:
    """Wait for so many more calls."""
    goal = len(recorder.history) + count

    async def reached() -> bool:
        return len(recorder.history) >= goal

    await until(f"{count} more calls", reached)


async def one_leads(replicas: list[MapProcess]) -> bool:
    """Whether somebody leads, and everybody answers."""
    roles = [(await replica.status()).get("role") for replica in replicas]
    return roles.count("leader") == 1 and None not in roles


async def the_leader(replicas: list[MapProcess]) -> MapProcess:
    """Who leads, waiting for it."""
    found: list[MapProcess] = []

    async def somebody() -> bool:
        for replica in replicas:
            if (await replica.status()).get("role") == "leader":
                found.append(replica)
                return True
        return False

    await until("a replica leads", somebody)
    return found[0]


async def follows(replica: MapProcess) -> bool:
    """Whether it serves, and knows a leader other than itself."""
    status = await replica.status()
    return status.get("role") == "follower" and status.get("leader") not in ("", replica.address)


async def all_equal(replicas: list[MapProcess]) -> bool:
    """Whether all stand at one position; then their digests have to be one."""
    found = [await replica.status() for replica in replicas]
    if len({one.get("position") for one in found}) != 1 or not found[0]:
        return False
    assert len({one["digest"] for one in found}) == 1, found
    return True


@asynccontextmanager
async def replicated_map(folder: Path) -> AsyncIterator[list[MapProcess]]:
    """ZooKeeper, three bookies and three replicas."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(cluster(folder, CHROOT))
        replicas = [MapProcess(number, folder, url) for number in range(3)]
        for replica in replicas:
            stack.callback(replica.kill)
            replica.start()
        yield replicas
