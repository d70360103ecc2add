"""A cluster whose ZooKeeper is lost: its bookies' folders bring the metadata back."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.bookie.__main__ import app
from engine.connecting import connect
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.test_cli_cluster import serving, write


async def read(url: str, ledger_id: int) -> list[bytes]:
    async with connect(url) as client:
        reader = await client.open_ledger(ledger_id)
        return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


def test_a_cluster_that_lost_its_zookeeper_reads_everything_after_a_rebuild(
    tmp_path: Path,
) -> None:
    lost, fresh = (shared_zookeeper().hosts + fresh_chroot() for _ in range(2))
    with serving(tmp_path, lost):
        ledger_id = asyncio.run(write(f"herdbook://{lost}", 300))
    folders = [str(tmp_path / f"disk-{number}") for number in range(4)]
    arguments = ["rebuild-metadata", *folders, "--into", f"herdbook://{fresh}"]
    rebuilt = CliRunner().invoke(app, arguments)
    assert rebuilt.exit_code == 0 and "1 ledgers restored" in rebuilt.output
    with serving(tmp_path, fresh):
        assert asyncio.run(read(f"herdbook://{fresh}", ledger_id)) == [b"moo"] * 300


def test_the_metadata_of_another_cluster_are_not_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (shared_zookeeper().hosts + fresh_chroot() for _ in range(2))
    for cluster, folder in ((one, "one"), (other, "other")):
        with serving(tmp_path / folder, cluster):
            asyncio.run(write(f"herdbook://{cluster}", 1))
    folder = str(tmp_path / "one" / "disk-0")
    refused = CliRunner().invoke(app, ["rebuild-metadata", folder, "--into", f"herdbook://{other}"])
    assert refused.exit_code == 2 and f"herdbook://{other} is the metadata of" in refused.stderr
