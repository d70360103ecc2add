"""A backup goes from a folder into a cluster and back: ZooKeeper, bookies, nodes of tablespaces."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

import herd
from blobit import AsyncBlobs
from engine.connecting import connect
from engine.ports.system_workers import ThreadWorkers
from herd.nodes.facts import SPACES, decode_space
from herd.wire.cluster import open_cluster
from herdbook.archive import back_up, restore_cluster
from herdbook.book import open_async
from tests.acceptance.herd_machines import NodeProcess
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.test_archive import call, told
from tests.herdbook.test_cli_backup_cluster import there_are
from tests.herdbook.test_cli_cluster import serving
from tests.herdbook.whole_stores import QUERIES, Held, fill, held_in, ledgers_in


class Cut(Exception):
    """Somebody pulls the plug."""


async def filled(store: Path) -> Held:
    async with open_async(store) as book:
        await fill(book)
    return await held_in(store)


async def cut_short(backups: Path, url: str) -> list[str]:
    """Begin a restoration that ends before its end; the tablespaces that there are then."""

    def step(done: int, total: int, size_bytes: int) -> None:
        if done == 3 and total > 10:
            raise Cut

    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with connect(url) as client:
            with pytest.raises(Cut):
                await restore_cluster(client, workers, backups, replicas=2, progress=step)
            return await client.store.children(SPACES)
    finally:
        await workers.close()


async def in_cluster(url: str, held: Held) -> None:
    """Compare what a cluster holds with what the folder did."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with connect(url) as client:
            assert await ledgers_in(client) == held["ledgers"]
            fact = await client.store.get(f"{SPACES}/farm")
            assert fact is not None and decode_space(fact.value).expected == 1
            for ledger_id in await client.list_ledgers():
                # A folder's one copy is as many as the cluster gives its own ledgers.
                assert (await client.ledger_metadata(ledger_id)).write_quorum == 3
            async with (
                open_cluster(url) as spaces,
                AsyncBlobs(client, None, workers, spaces) as blobs,
            ):
                for name, objects in held["objects"].items():
                    bucket = await blobs.bucket(name)
                    infos = [info async for info in bucket.scan()]
                    assert [(info, await bucket.get(info.name)) for info in infos] == objects
                await (await blobs.bucket("photos")).put("from the cluster", b"moo")
    finally:
        await workers.close()


async def backed_up(url: str, backups: Path) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with connect(url) as client:
            await back_up(client, workers, backups, kind="cluster")
    finally:
        await workers.close()


def test_a_folder_becomes_a_cluster_and_that_a_folder_again(tmp_path: Path) -> None:
    held = asyncio.run(filled(tmp_path / "store"))
    told(call("store", "backup", tmp_path / "backups", "--url", tmp_path / "store", "--json"))
    address = shared_zookeeper().hosts + fresh_chroot()
    url = f"herdbook://{address}"
    with ExitStack() as stack:
        stack.enter_context(serving(tmp_path, address))
        assert asyncio.run(cut_short(tmp_path / "backups", url)) == []
        answer = told(
            call("store", "restore", tmp_path / "backups", "--url", url, "--replicas", 1, "--json")
        )
        assert 0 < answer["written"] < answer["ledgers"]
        node = NodeProcess(0, tmp_path, url)
        stack.callback(node.kill)
        node.start()
        asyncio.run(there_are(1, url))
        for name, rows in held["rows"].items():
            with herd.connect(url, name, autocommit=True) as connection:
                assert connection.execute(QUERIES[name]).fetchall() == list(rows)
        asyncio.run(in_cluster(url, held))
        refused = call("store", "restore", tmp_path / "backups", "--url", url)
        assert refused.exit_code == 1 and "not empty" in refused.stderr
        assert told(call("store", "check", "--url", url, "--json"))["whole"]
        asyncio.run(backed_up(url, tmp_path / "others"))
    again = tmp_path / "again"
    told(call("store", "restore", tmp_path / "others", "--url", again, "--json"))
    found = asyncio.run(held_in(again))
    photos = {info.name: body for info, body in found["objects"]["photos"]}
    assert photos.pop("from the cluster") == b"moo"
    assert photos == {info.name: body for info, body in held["objects"]["photos"]}
    assert found["rows"] == held["rows"] and found["tasks"] == held["tasks"]
    assert found["ledgers"] == held["ledgers"]
