"""The how-tos of a cluster, followed on three machines."""

import itertools
import json
import re
import select
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import pytest

from herdbook.zookeeper_server import ZooKeeperServer
from tests.crash_matrix import client
from tests.docs.blocks import SHELL, blocks_of, text_of
from tests.operate.machines import NODES, Machines

NEW = "docs/howto/three-machines.md"
DEAD = "docs/howto/replace-a-dead-machine.md"
UPGRADE = "docs/howto/rolling-upgrade.md"
READY_S: Final = 100.0
CLIENT: Final = (sys.executable, "-m", "tests.crash_matrix.client")


def blocks(page: str) -> list[str]:
    """The commands of a page, block by block."""
    return [block.text for block in blocks_of(page) if block.kind in SHELL]


def toml_of(page: str) -> str:
    """The only file of settings that a page shows."""
    [text] = [block.text for block in blocks_of(page) if block.kind == "toml"]
    return text


def prepare(machines: Machines, number: int) -> None:
    """Change in a machine's file what the page says that differs."""
    file = machines.tree(number) / "etc/herdbook/node.toml"
    text = machines.there(file.read_text(), number)
    address = machines.address(number)
    for key, value in (("host", f'"{address}"'), ("rack", f'"/row-1/rack-{number}"')):
        text, found = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert found == 1, key
    # A machine that is gone is given up at once: nobody waits minutes for a test.
    text += "\n[repair]\ngrace_ms = 3000\n"
    text = text.replace("[herd]\n", "[herd]\nreplica_grace_ms = 3000\n")
    tomllib.loads(text)
    file.write_text(text)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """The metadata store of the cluster."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer
) -> Iterator[Machines]:
    """A cluster that was made by following the page."""
    found = Machines(tmp_path_factory.mktemp("operate"), zookeeper.hosts)
    try:
        follow_new(found)
        yield found
    finally:
        found.close()


def follow_new(machines: Machines) -> None:
    """docs/howto/three-machines.md up to a cluster that serves."""
    secrets, install, start, use, _ = blocks(NEW)
    machines.run(secrets)
    for number in NODES:
        tree = machines.tree(number)
        (tree / "etc/systemd/system").mkdir(parents=True)
        text = re.sub(r"^python3 -m venv .*$", "", install, flags=re.MULTILINE)
        machines.run(text.replace("node-1.example", f"node-{number}.example"), number)
        prepare(machines, number)
        config = tree / ".config/herdbook/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(machines.there(toml_of(NEW), number))
    # The operator's own machine has the files of the first one.
    mine = machines.tree(0) / ".config/herdbook"
    mine.mkdir(parents=True)
    (mine / "config.toml").write_text(machines.there(toml_of(NEW), 1))
    check, enable, look = start.strip().splitlines()
    for number in NODES:
        assert "no errors: " in machines.run(check, number)
    with ThreadPoolExecutor() as together:
        list(together.map(lambda number: machines.run(enable, number), NODES))
    for number in NODES:
        said = machines.run(look, number)
        assert all(role in said for role in ("bookie", "herd", "broker", "http")), said
        assert "Traceback" not in said
    for line in commands(use):
        machines.run(
            line.replace("user add ann", "user add ann --password-file <(echo cow-cow-cow)")
        )
    machines.until("herdbook herd tablespaces", in_step)


def commands(block: str) -> list[str]:
    """The lines of a block that are commands."""
    return [line for line in block.splitlines() if line.strip() and not line.startswith("export ")]


def nothing_waits(said: str) -> bool:
    """Whether `repair status` says that all copies are there."""
    return bool(re.search(r"ledgers that wait +\S 0 ", said))


class Load:
    """A program that writes rows, objects, entries and tasks while something happens."""

    _KINDS: Final = (client.ENTRY, client.ROW, client.OBJECT, client.TASK)
    _numbers: Final = itertools.count()

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._url = tomllib.loads(machines.there(toml_of(NEW), 1))["url"]
        self._notes = machines.desk / f"notes-{next(self._numbers)}"
        self._process = machines.begin(
            [*CLIENT, "load", self._url, str(self._notes), "7", *self._KINDS]
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_S)
        assert ready and self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def judged(self, newest: int | None = None) -> int:
        """How much was looked for. All of it is there, and each kind can be written.

        Once it has ended. `newest`: so many of the last ones, and some of those before. Raises
        `AssertionError`.
        """
        kinds = ",".join(self._KINDS)
        noted = len(self._notes.read_text().splitlines())
        line = 0 if newest is None else max(0, noted - newest)
        words = [*CLIENT, "judge", self._url, "8", kinds, f"{self._notes}:{line}"]
        told = json.loads(self._machines.run(shlex.join(words)).splitlines()[-1])
        assert told["lost"] == []
        return int(told["looked_at"])


def test_a_cluster_loses_one_machine_and_gets_it_back(machines: Machines) -> None:
    lose = blocks(NEW)[-1]
    mask, insert, bookies, unmask, status = commands(lose)
    assert "node-3" in mask and "another one" in insert and "node-3" in unmask
    machines.run(mask, 3)
    assert "Resi" in machines.run(insert)
    machines.until(bookies, lambda said: said.count("away") == 2, 10)
    machines.run(unmask, 3)
    machines.until(status, nothing_waits)
    machines.until(bookies, lambda said: "away" not in said)


def test_a_cluster_is_upgraded_machine_by_machine_while_programs_write(machines: Machines) -> None:
    block, [layout] = blocks(UPGRADE)[0], commands(blocks(UPGRADE)[1])
    stop, upgrade, check, start, bookies, spaces = commands(block)
    load = Load(machines)
    with load:
        for number in NODES:
            for command in (stop, upgrade, check, start):
                machines.run(command, number)
            machines.run(bookies)
            machines.until(spaces, in_step)
            machines.until("herdbook repair status", nothing_waits)
        assert "0 keys were moved" in machines.run(layout)
    assert load.judged() > 20


def in_step(said: str) -> bool:
    """Whether `herd tablespaces` shows a leader and two followers of each tablespace."""
    leaders, followers = said.count("(leader at "), said.count("(follower at ")
    return (
        leaders > 0 and followers == 2 * leaders and len(re.findall(r"\(\w", said)) == 3 * leaders
    )


def test_a_machine_that_died_is_replaced_by_an_empty_one(machines: Machines) -> None:
    look, lose, forget = blocks(DEAD)
    bookies, status = commands(look)
    load = Load(machines)
    with load:
        machines.kill(2)
        shutil.rmtree(machines.tree(2) / "var/lib/herdbook")
        said = machines.until(bookies, lambda said: said.count("away") == 2)
        gone = [each for line in said.splitlines() if "away" in line for each in ids(line)]
        machines.until(status, lambda said: all(each in said for each in gone))
        (machines.tree(2) / "var/lib/herdbook").mkdir(mode=0o700)
        [loses] = commands(lose)
        for each in gone:
            machines.run(loses.replace("5f2c6e01a3b4", each))
        machines.run("systemctl start herdbook", 2)
        machines.until(status, nothing_waits)
        machines.until("herdbook herd tablespaces", in_step, 90)
    forgets, check = commands(forget)
    assert len(gone) == 2
    for each in gone:
        machines.run(forgets.replace("5f2c6e01a3b4", each))
    assert not set(gone) & set(ids(machines.run(bookies)))
    machines.run(check)
    assert load.judged() > 20


def ids(said: str) -> list[str]:
    """The ids of bookies in what a command says."""
    return re.findall(r"\b[0-9a-f]{12,16}\b", said)


OPERATING: Final = "docs/operating.md"
ELSEWHERE: Final = {
    "openssl req": "the how-to of three machines does the same",
    "head -c 32": "the how-to of three machines does the same",
    "herdbook herd node": "tests/herdbook/test_herd_node_wires.py starts such a node",
    "herdbook task serve": "tests/herdbook/test_cli_task_cluster.py starts such a broker",
    "rebuild-metadata": "tests/herdbook/test_cluster_rebuilt.py rebuilds a cluster",
}


def test_the_blocks_of_the_operators_page_do_what_they_say(machines: Machines) -> None:
    machines.run("herdbook blob mb photos && echo moo | herdbook blob put - photos/cow")
    for block in blocks(OPERATING):
        if any(each in block for each in ELSEWHERE):
            continue
        for command in commands(block.replace("/backups", str(machines.desk / "backups"))):
            # The only block that needs a second cluster: tests/herdbook/test_archive_cluster.py.
            if "store restore" not in command:
                machines.run(command)
    # The other tests submit more than the page's example allows.
    machines.run("""herdbook task set quota '*' '{"tasks": 1000000}'""")
    assert "photos" in machines.run("herdbook blob buckets")
    assert "acme" in machines.run("herdbook task resources")
    told = " ".join(text_of(OPERATING).split()).replace("check sales", "check default")
    for command in (
        'herdbook repair off --reason "new disks in rack 7"',
        "herdbook repair on",
        "herdbook repair scrub --wait",
        "herdbook herd check default",
        "herdbook bookie gc",
    ):
        assert command.partition(" --reason")[0] in told
        machines.run(command)


def test_zookeeper_that_comes_back_empty_begins_no_new_cluster(
    machines: Machines, zookeeper: ZooKeeperServer
) -> None:
    load = Load(machines)
    with load:
        pass
    data, kept = zookeeper.folder / "data", zookeeper.folder / "kept"
    zookeeper.stop()
    shutil.move(data, kept)
    zookeeper.start()
    assert "no cluster at" in machines.run("herdbook bookie ls", fails=True)
    machines.kill(1)
    said = machines.run("systemctl start herdbook", 1, fails=True)
    assert "has lost its data, bring them back first" in said and "Traceback" not in said, said
    zookeeper.stop()
    shutil.rmtree(data)
    shutil.move(kept, data)
    zookeeper.start()
    machines.run("systemctl start herdbook", 1)
    machines.until("herdbook herd tablespaces", in_step)
    assert load.judged() >= 4
