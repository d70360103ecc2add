"""Backups of a real cluster become tablespaces of it again: ZooKeeper, bookies, two nodes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

import herd
from engine.connecting import connect
from engine.ledger.client import LedgerClient
from herd.nodes import SpaceCommands
from herd.nodes.facts import RESTORING, SPACES
from herdbook.cli.main import app
from tests.acceptance.herd_machines import NodeProcess
from tests.acceptance.machines import ROOT, until
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.test_cli_cluster import serving

COWS = 20_000
MADE = (
    "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT UNIQUE, milk DECIMAL(6, 2))",
    "CREATE VIEW milker AS SELECT id FROM cow WHERE milk > 0",
    f"INSERT INTO cow SELECT n, 'cow ' || n, n % 40 FROM range({COWS}) AS r(n)",
)
ROWS = "SELECT id, name, milk FROM cow ORDER BY id"


class Running(NamedTuple):
    """A cluster with a tablespace of cows, and a backup of that."""

    url: str
    nodes: list[NodeProcess]
    file: Path
    rows: list[tuple[object, ...]]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"HERDBOOK_URL": ""})


@asynccontextmanager
async def reached(url: str) -> AsyncIterator[tuple[LedgerClient, SpaceCommands]]:
    async with connect(url) as client:
        yield client, SpaceCommands(client.store, client.clock, client.rng)


async def there_are(nodes: int, url: str) -> None:
    async with reached(url) as (_, commands):

        async def registered() -> bool:
            return len(await commands.nodes()) == nodes

        await until("the nodes are registered", registered)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("cluster")
    address = shared_zookeeper().hosts + fresh_chroot()
    url = f"herdbook://{address}"
    with ExitStack() as stack:
        stack.enter_context(serving(folder, address))
        nodes = [NodeProcess(number, folder, url) for number in range(2)]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        asyncio.run(there_are(len(nodes), url))
        assert call("herd", "create", "farm", "--url", url).exit_code == 0
        with herd.connect(url, "farm", autocommit=True) as connection:
            for text in MADE:
                connection.execute(text)
            rows = connection.execute(ROWS).fetchall()
        made = call("backup", url, folder / "cows.herd", "-t", "farm")
        assert made.exit_code == 0, made.output
        yield Running(url, nodes, folder / "cows.herd", rows)


def names(url: str) -> list[str]:
    with herd.open_herd(url) as opened:
        return opened.names()


async def only(url: str, *wanted: str) -> None:
    """Wait until no other names are taken, and nobody holds one."""
    async with reached(url) as (client, _):

        async def swept() -> bool:
            taken = await client.store.children(SPACES)
            return {*taken} == {"default", *wanted} and not await client.store.children(RESTORING)

        await until("what is left is swept", swept, 60.0)


def test_a_backup_becomes_a_tablespace_that_takes_writes_and_outlives_its_leader(
    cluster: Running,
) -> None:
    url, nodes, file, rows = cluster
    answer = call("restore", file, url, "again")
    assert answer.exit_code == 0 and f"{COWS:,} rows in 1 table" in answer.stdout, answer.output
    with herd.connect(url, "again", autocommit=True) as connection:
        assert connection.execute(ROWS).fetchall() == rows
        connection.execute("INSERT INTO cow VALUES (-1, 'Elsa', 21.5)")
        for text in ("'Elsa', 1", "'cow 7', 1"):
            with pytest.raises(herd.IntegrityError, match="23505"):
                connection.execute(f"INSERT INTO cow VALUES (-2, {text})")

    async def leader() -> NodeProcess:
        async with reached(url) as (_, commands):
            found = await commands.until_led("again", 30_000)
            return next(node for node in nodes if node.address == found)

    killed = asyncio.run(leader())
    killed.kill()
    try:
        with herd.connect(url, "again", autocommit=True) as connection:
            elsa = "SELECT milk FROM cow WHERE name = 'Elsa'"
            assert [str(milk) for (milk,) in connection.execute(elsa).fetchall()] == ["21.50"]
            connection.execute("DELETE FROM cow WHERE name = 'Elsa'")
            assert connection.execute(ROWS).fetchall() == rows
    finally:
        killed.start()
        asyncio.run(there_are(len(nodes), url))


def test_a_name_that_is_taken_and_a_damaged_file_make_nothing(
    cluster: Running, tmp_path: Path
) -> None:
    url, _, file, rows = cluster
    before = names(url)
    taken = call("restore", file, url, "farm")
    assert taken.exit_code == 1 and "there is a tablespace farm already" in taken.stderr
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / "damaged.herd").write_bytes(whole)
    with herd.open_herd(url) as opened, pytest.raises(herd.OperationalError, match="damaged"):
        opened.restore(tmp_path / "damaged.herd", "broken")
    assert names(url) == before
    asyncio.run(only(url, *set(before) - {"default"}))
    with herd.connect(url, "farm", autocommit=True) as connection:
        assert connection.execute(ROWS).fetchall() == rows


def test_of_two_who_restore_under_one_name_one_succeeds(cluster: Running) -> None:
    url, _, file, rows = cluster
    words = [sys.executable, "-m", "herdbook", "restore", str(file), url, "twin"]
    running = [
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = sorted((process.communicate(), process.returncode)[::-1] for process in running)
    assert [status for status, _ in told] == [0, 1], told
    _, (_, refused) = told[1]
    assert "NameTaken" in refused and "twin" in refused
    with herd.connect(url, "twin") as connection:
        assert connection.execute(ROWS).fetchall() == rows


def test_a_restoration_that_is_killed_half_way_leaves_no_tablespace(
    cluster: Running, tmp_path: Path
) -> None:
    url, _, file, _ = cluster
    before = names(url)
    words = [sys.executable, "-m", "herdbook", "restore", str(file), url, "half"]
    # What it has under way on its own disk goes with the test.
    environment = os.environ | {"HERDBOOK_URL": "", "TMPDIR": str(tmp_path)}

    async def kill_half_way() -> None:
        async with reached(url) as (client, commands):
            process = await asyncio.create_subprocess_exec(
                *words, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment
            )

            async def filling() -> bool:
                assert process.returncode is None, "it has ended"
                return await client.store.get("/logs/herd/half/list") is not None

            try:
                await until("its log is begun", filling)
            finally:
                process.kill()
                await process.wait()
            assert "half" not in await commands.spaces()
            assert "half" in await client.store.children(SPACES), "its name is held"

    asyncio.run(kill_half_way())
    assert names(url) == before
    asyncio.run(only(url, *set(before) - {"default"}))
    answer = call("restore", file, url, "half")
    assert answer.exit_code == 0, answer.output
    assert names(url) == sorted([*before, "half"])
