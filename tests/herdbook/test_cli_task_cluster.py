"""`herdbook task` over a cluster: two brokers as processes, one of which leads."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import herdbook
from broker.errors import TaskCancelled, WaitTimedOut
from engine.errors import InvalidRequest
from herdbook.cli.main import app
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.test_cli_cluster import serving

LOOKS_MAX = 60
LINE = "the broker serves at "


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a cluster of bookies."""
    address = shared_zookeeper().hosts + fresh_chroot()
    with serving(tmp_path_factory.mktemp("cluster"), address):
        yield f"herdbook://{address}"


def free_address() -> str:
    """An address nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


class Served:
    """A broker of the cluster, in a process."""

    def __init__(self, cluster: str, data: Path) -> None:
        self.grpc = free_address()
        command = [sys.executable, "-m", "herdbook", "task", "serve", "--url", cluster]
        command += ["--listen", "127.0.0.1:0", "--grpc", self.grpc, "--state", str(data)]
        environment = {**os.environ, "HERDBOOK_URL": ""}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(LINE), line
        self.url = line.removeprefix(LINE).strip()

    def mode(self) -> str:
        """Whether it leads."""
        told: dict[str, str] = httpx.get(f"{self.url}/healthz").json()
        return told["mode"]

    def task(self, task_id: str) -> dict[str, Any]:
        """A task, as soon as this broker knows who leads."""
        for _ in range(LOOKS_MAX):
            reply = httpx.get(f"{self.url}/api/v1/tasks/{task_id}", timeout=30)
            if reply.status_code != 503:
                break
        told: dict[str, Any] = reply.json()
        assert reply.status_code == 200, told
        return told

    def end(self) -> int:
        """Have it leave; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def submitted(cluster: str) -> str:
    """Submit a task as soon as somebody leads."""
    told = ""
    for _ in range(LOOKS_MAX):
        answer = CliRunner().invoke(app, ["task", "submit", "t", "--url", cluster])
        if answer.exit_code == 0:
            return answer.stdout.strip()
        told = answer.output
    raise AssertionError(told)


def test_any_broker_answers_and_another_one_takes_over(cluster: str, tmp_path: Path) -> None:
    first = Served(cluster, tmp_path / "first")
    task_id = submitted(cluster)
    second = Served(cluster, tmp_path / "second")
    try:
        assert (first.mode(), second.mode()) == ("leader", "follower")
        through_it = second.task(task_id)
        assert (through_it["id"], through_it["status"]) == (int(task_id), "waiting")
        body = {"action": "submitTask", "tasktype": "u"}
        told = httpx.post(f"{second.url}/majordodo", json=body).json()
        assert told["taskId"] == int(task_id) + 1
        with herdbook.connect(cluster) as connected:
            reach_whoever_leads(connected, first)
        assert asyncio.run(types(cluster, int(task_id) + 2)) == ["t"]
        assert int(submitted(cluster)) == int(task_id) + 3
        assert second.mode() == "leader"
    finally:
        first.end()
        assert second.end() == 0


def reach_whoever_leads(connected: herdbook.Cluster, leader: Served) -> None:
    """A program goes on when the leader is killed; nobody has to name it the next one."""
    tasks = connected.tasks
    with tasks.transaction() as together:
        handle = together.submit("t", {"cow": "elsa"}, tenant="acme")
    assert tasks.payload(handle.id) == b'{"cow":"elsa"}'
    with pytest.raises(WaitTimedOut):
        handle.wait(timeout_ms=1)
    leader.process.kill()
    assert tasks.get(handle.id).tenant == "acme"
    handle.cancel()
    with pytest.raises(TaskCancelled):
        handle.wait(10_000)


async def types(cluster: str, task_id: int) -> list[str]:
    """The type of a task, by the door with an event loop."""
    async with herdbook.connect_async(cluster) as connected:
        tasks = await connected.tasks()
        return [(await tasks.get(task_id)).type]


def test_only_a_cluster_is_connected_to(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"herdbook\.open"):
        herdbook.connect(str(tmp_path))
