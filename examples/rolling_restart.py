"""Restart a cluster of three bookies, one after the other, while a program goes on writing to it.

    python examples/rolling_restart.py --zookeeper 127.0.0.1:2181/restart --folder ./restart

It starts three real bookies, the agent of each, and a broker in a folder of its own; then it asks
for a roll-out. An agent restarts its bookie when the others answer, and the next one begins when
this one answers again. docs/rollouts.md explains what holds it together.

`RestartBookie` is what agents have; they import this very file (`herdbook worker --agent bookie-1
--tasks rolling_restart`). The rest is the demonstration.

Invariants:
- A bookie is stopped only when all of the others answer, and only by its own agent.
- What the program was told is written has two copies at least, and is there in the end, in the one
  ledger that it never had to leave.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

import herdbook
from broker.rollouts import Action, NotNow, action

ROOT: Final = Path(__file__).parents[1]
NODES: Final = ("bookie-1", "bookie-2", "bookie-3")
PATIENCE_S: Final = 30.0
LOOK_S: Final = 0.05
WRITE_PAUSE_S: Final = 0.01


class Place(msgspec.Struct):
    """Where a bookie is; its file `NODE.json` says so."""

    process: int
    address: str


def place_of(folder: Path, node: str) -> Place:
    """Where a bookie was started last."""
    return msgspec.json.decode((folder / f"{node}.json").read_bytes(), type=Place)


def answers(address: str) -> bool:
    """Whether something listens there."""
    try:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except OSError:
        return False


def lives(process: int) -> bool:
    """Whether a process runs, or waits for nobody but its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def launch(folder: Path, node: str, zookeeper: str) -> "subprocess.Popen[bytes]":
    """Start a bookie that outlives who started it."""
    said = folder / f"{node}.out"
    command = ["bookie", "--data", str(folder / node), "--zookeeper", zookeeper]
    with said.open("wb") as out, (folder / f"{node}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "herdbook", *command, "--listen", "127.0.0.1:0", "--host", node],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def until_serving(folder: Path, node: str, started: "subprocess.Popen[bytes]") -> None:
    """Wait until a bookie that was started serves, and keep where."""
    said = folder / f"{node}.out"
    until_s = time.monotonic() + PATIENCE_S
    while not (line := said.read_text().partition("\n")[0]).startswith("serving"):
        if started.poll() is not None or time.monotonic() > until_s:
            raise OSError(f"{node} does not start: see {folder / node}.log")
        time.sleep(LOOK_S)
    place = Place(started.pid, line.partition(" at tcp:")[2].split()[0])
    (folder / f"{node}.json").write_bytes(msgspec.json.encode(place))


def stop_bookie(folder: Path, node: str) -> None:
    """Let a bookie finish what it took; returns when it has gone."""
    process = place_of(folder, node).process
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    until_s = time.monotonic() + PATIENCE_S
    while lives(process):
        if time.monotonic() > until_s:
            raise OSError(f"{node} does not end")
        time.sleep(LOOK_S)


@action("bookie:restart", version=1)
class RestartBookie(Action):
    """What an agent does to its bookie. Arguments: `folder`, `zookeeper`."""

    @property
    def folder(self) -> Path:
        """Where the bookies of this demonstration are."""
        return Path(self.step.arguments["folder"])

    def pre_check(self) -> bool:
        """All the others answer: a ledger of three copies may do without this one."""
        for node in NODES:
            if node != self.step.destnode and not answers(place_of(self.folder, node).address):
                raise NotNow(f"{node} does not answer")
        return True

    def execute(self) -> None:
        """Stop it and start it again."""
        stop_bookie(self.folder, self.step.destnode)
        started = launch(self.folder, self.step.destnode, self.step.arguments["zookeeper"])
        until_serving(self.folder, self.step.destnode, started)

    def post_check(self) -> bool:
        """It answers."""
        return answers(place_of(self.folder, self.step.destnode).address)

    def check_node(self) -> bool:
        """It answers, as seen from another node."""
        return self.post_check()


@contextmanager
def bookies(folder: Path, zookeeper: str) -> Iterator[None]:
    """Three bookies, for as long as the demonstration lasts."""
    try:
        started = [launch(folder, node, zookeeper) for node in NODES]
        for node, each in zip(NODES, started, strict=True):
            until_serving(folder, node, each)
        yield
    finally:
        for node in NODES:
            with suppress(OSError):
                stop_bookie(folder, node)


@contextmanager
def agents(tasks: Path) -> Iterator[None]:
    """The agent of each bookie; in production, a service on each machine."""
    command = [sys.executable, "-m", "herdbook", "worker", "--tasks", "rolling_restart"]
    running = [
        subprocess.Popen(
            [*command, "--agent", node, "--url", str(tasks)],
            cwd=Path(__file__).parent,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), *sys.path)))},
        )
        for node in NODES
    ]
    try:
        yield
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait()


class Writing:
    """A program that goes on writing: two of three bookies must have what it calls written."""

    def __init__(self, zookeeper: str) -> None:
        self.entries = 0
        """So many were acknowledged."""
        self._url = f"herdbook://{zookeeper}"
        self._over = asyncio.Event()

    async def run(self) -> int:
        """Write until told to stop, then read it all; how many entries are missing."""
        # Agents import this file, too, and have no use for a client of ledgers.
        import engine

        async with engine.connect(self._url) as client:
            writer = await client.create_ledger()
            while not self._over.is_set():
                async with asyncio.timeout(PATIENCE_S):
                    await writer.append(b"%d" % self.entries)
                self.entries += 1
                await asyncio.sleep(WRITE_PAUSE_S)
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            found = {int(each.body) async for each in reader.read(0, reader.last_add_confirmed)}
        return len(set(range(self.entries)) - found)

    def stop(self) -> None:
        """Write nothing more."""
        self._over.set()


async def restart(folder: Path, zookeeper: str) -> int:
    """The demonstration; the exit status."""
    tasks = folder / "tasks"
    async with herdbook.open_async(tasks) as book:
        rollouts = (await book.tasks()).rollouts
        with agents(tasks):
            writing = Writing(zookeeper)
            written = asyncio.create_task(writing.run())
            before = {node: place_of(folder, node).process for node in NODES}
            name = await rollouts.start(
                {
                    "action": "bookie:restart",
                    "version": 1,
                    "limit": 1,
                    "cluster_name": "bookies",
                    "owner": "the demonstration",
                    "params": {"action_args": {"folder": str(folder), "zookeeper": zookeeper}},
                    "nodes": list(NODES),
                }
            )
            rollout = await rollouts.wait(name, timeout_ms=300_000)
            writing.stop()
            missing = await written
        for note in await rollouts.notes(name):
            print(f"{note.node or 'all':10} {note.text}")
        restarted = [node for node in NODES if place_of(folder, node).process != before[node]]
        print(f"{rollout.why}; restarted: {', '.join(restarted)}")
        print(f"{writing.entries} entries were written meanwhile, {missing} are missing")
        whole = rollout.state.name == "FINISHED" and len(restarted) == len(NODES)
        return 0 if whole and not missing else 1


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--zookeeper", required=True, help="HOST:PORT/PATH of a new cluster")
    parser.add_argument("--folder", required=True, type=Path, help="where everything is put")
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with bookies(folder, chosen.zookeeper):
        return asyncio.run(restart(folder, chosen.zookeeper))


if __name__ == "__main__":
    raise SystemExit(main())
