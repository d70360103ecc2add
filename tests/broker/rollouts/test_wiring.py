"""What operators wire up: discoveries, hooks for alarms; and agents' places."""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.connection import Hello, Run, WorkerLink
from broker.errors import BrokerUnavailable, InvalidTask
from broker.rollouts.agent import AgentPlaces, serve_agent
from broker.rollouts.alarming import WAITING_MAX, Alarms, CommandHook
from broker.rollouts.discovery import CommandDiscovery, Discovery, StoreDiscovery, discover
from broker.rollouts.facts import Alarm
from broker.rollouts.performing import PING_TYPE, STEP_TYPE
from broker.rollouts.steps import group_of, ping_type, step_type
from broker.worker.pool import Pool as ProcessPool
from broker.worker.pool import PoolSettings
from broker.worker.worker import Worker, WorkerSettings
from engine.ports.clock import SystemClock

ALARM = Alarm("dead", "geo-1", "a", "storage", "it is a dead letter")
PYTHON = (sys.executable, "-c")


class Children:
    """A store of which only the names below a path matter."""

    async def children(self, prefix: str) -> list[str]:
        return {"/geo": ["b", "a"], "/": ["geo"]}.get(prefix, [])


class Broken:
    async def nodes(self, what: str) -> Sequence[str]:
        raise RuntimeError("no plug")


async def test_nodes_come_from_the_store_a_command_or_nowhere() -> None:
    store: Any = Children()
    plugins: dict[str, Discovery] = {
        "zookeeper": StoreDiscovery(store),
        "command": CommandDiscovery(
            {
                "racks": (*PYTHON, "print('b\\n\\n a\\nb')"),
                "bad": (*PYTHON, "import sys; sys.exit('no racks')"),
                "missing": ("/nowhere/at-all",),
                "odd": (*PYTHON, "print('a/b')"),
            }
        ),
        "broken": Broken(),
    }
    assert await discover(plugins, "zookeeper:/geo") == ("a", "b")
    assert await discover(plugins, "zookeeper:/geo/") == ("a", "b")
    assert await discover(plugins, "command:racks") == ("a", "b")
    for wrong, said in (
        ("dns:geo", "there is no discovery 'dns' here; there are static, zookeeper, command"),
        ("zookeeper:geo", "no path"),
        ("command:odd", "'a/b' is no node"),
        ("command:rm -rf /", "no operator has set up a command 'rm -rf /'"),
    ):
        with pytest.raises(InvalidTask, match=said):
            await discover(plugins, wrong)
    for away, said in (
        ("command:bad", "ended with 1: no racks"),
        ("command:missing", "cannot be run"),
        ("broken:x", "no plug"),
    ):
        with pytest.raises(BrokerUnavailable, match=said):
            await discover(plugins, away)


async def test_an_alarm_comes_to_its_command_and_a_failing_hook_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "alarm"
    script = f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())"
    alarms = Alarms(CommandHook((*PYTHON, script)))
    alarms.tell(ALARM)
    await alarms.close()
    assert json.loads(file.read_text())["text"] == "it is a dead letter"
    failing = Alarms(CommandHook((*PYTHON, "raise SystemExit(3)")))
    failing.tell(ALARM)
    await failing.close()
    assert "the hook for alarms failed" in caplog.text
    assert "roll-out geo-1 (dead, of storage): node a: it is a dead letter" in caplog.text


async def test_so_many_alarms_wait_for_a_slow_hook_and_no_more() -> None:
    told: list[str] = []
    slow = asyncio.Event()

    async def hook(alarm: Alarm) -> None:
        await slow.wait()
        told.append(alarm.text)

    alarms = Alarms(hook)
    for number in range(WAITING_MAX + 5):
        alarms.tell(Alarm("stale", "", "", "", str(number)))
    slow.set()
    await alarms.close()
    assert told == [str(number) for number in range(5, WAITING_MAX + 5)]


class Nowhere:
    async def connect(self, hello: Hello) -> WorkerLink:
        raise BrokerUnavailable("nobody leads")


async def test_an_agent_without_any_action_does_not_begin_and_says_what_it_misses() -> None:
    modules = ("tests.broker.worker.functions",)
    with pytest.raises(InvalidTask, match=r"no action is registered.*@action"):
        await serve_agent(
            Nowhere(),
            "a",
            WorkerSettings("w", "p"),
            PoolSettings(modules),
            SystemClock(),
            random.Random(1),
        )


async def test_an_agent_with_an_action_begins(tmp_path: Path) -> None:
    text = (
        "from broker.rollouts import Action, action\n"
        "@action('os:restart', version=1)\n"
        "class Restart(Action):\n    pass\n"
    )
    (tmp_path / "farm_actions.py").write_text(text)
    started: list[tuple[str, ...]] = []

    def listen(worker: Worker, pool: ProcessPool) -> None:
        started.append(worker.types)
        worker.drain()

    assert await serve_agent(
        Nowhere(),
        "a",
        WorkerSettings("w", "p"),
        PoolSettings(("farm_actions",), (str(tmp_path),)),
        SystemClock(),
        random.Random(1),
        listen,
    )
    assert started == [(step_type("a"), ping_type("a"))]


class Pool:
    def __init__(self) -> None:
        self.runs: list[Run] = []

    def run(self, runs: list[Run]) -> None:
        self.runs += runs


def test_an_agent_takes_the_types_of_its_node_under_the_names_that_children_know() -> None:
    pool: Any = Pool()
    places = AgentPlaces(pool, "a")
    places.run([Run(1, 1, "t", step_type("a"), b"1"), Run(2, 1, "t", ping_type("a"), b"2")])
    assert [run.type for run in pool.runs] == [STEP_TYPE, PING_TYPE]
    with pytest.raises(KeyError):
        places.run([Run(3, 1, "t", step_type("b"), b"3")])
    assert group_of("a") == group_of("a") > 1_000_000 and group_of("a") != group_of("b")
