"""The example: three real bookies are restarted one by one, and a writer goes on."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.rollouts import Document, NotNow, Step
from broker.rollouts.actions import GO, HEALTHY, UNHEALTHY, WAIT, perform
from broker.rollouts.document import CHECK_NODE, POST_CHECK, PRE_CHECK, Params
from examples import rolling_restart
from examples.rolling_restart import NODES, Place
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

ROOT = Path(__file__).parents[2]


async def test_a_cluster_of_three_bookies_is_restarted_while_a_program_writes(
    tmp_path: Path,
) -> None:
    zookeeper = f"{shared_zookeeper().hosts}{fresh_chroot()}"
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "examples/rolling_restart.py"),
        *("--zookeeper", zookeeper, "--folder", str(tmp_path)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await running.communicate()
    said = output.decode()
    assert running.returncode == 0, (said, errors.decode())
    assert "finished: 3 done, 0 skipped; restarted: bookie-1, bookie-2, bookie-3" in said
    begun = re.findall(r"(bookie-\d) +execute is sent", said)
    healthy = re.findall(r"(bookie-\d) +is healthy: done", said)
    assert begun == healthy and sorted(begun) == list(NODES)
    # One is proven healthy before the next one is touched.
    order = re.findall(r"(execute is sent|is healthy: done)", said)
    assert order == ["execute is sent", "is healthy: done"] * 3
    entries = re.search(r"(\d+) entries were written meanwhile, 0 are missing", said)
    assert entries is not None and int(entries[1]) > 0


def step(part: str, folder: Path) -> Step:
    document = Document(
        action="bookie:restart",
        version=1,
        limit=1,
        cluster_name="bookies",
        params=Params(action_args={"folder": str(folder), "zookeeper": "none"}),
        destnode="bookie-1",
    )
    return Step(part=part, document=document)


def test_a_bookie_is_not_touched_while_another_one_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"b:2"}
    monkeypatch.setattr(rolling_restart, "answers", lambda address: address not in away)
    places = {node: Place(0, f"b:{number}") for number, node in enumerate(NODES, 1)}
    monkeypatch.setattr(rolling_restart, "place_of", lambda folder, node: places[node])
    told = perform(step(PRE_CHECK, tmp_path))
    assert (told.verdict, told.why) == (WAIT, "bookie-2 does not answer")
    away.clear()
    assert perform(step(PRE_CHECK, tmp_path)).verdict == GO
    assert perform(step(POST_CHECK, tmp_path)).verdict == HEALTHY
    away.add("b:1")
    assert perform(step(CHECK_NODE, tmp_path)).verdict == UNHEALTHY
    with pytest.raises(NotNow):
        away.add("b:3")
        rolling_restart.RestartBookie(step(PRE_CHECK, tmp_path)).pre_check()
