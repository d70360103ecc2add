"""A role of a cluster's node in this process, up to its end."""

import asyncio
import os
import urllib.request
from pathlib import Path

import pytest

from blobit.errors import BlobNotFound
from broker.errors import SubmitRefused
from engine.errors import EngineError, FolderError, InvalidRequest
from engine.metadata.zookeeper import ZooKeeperStore
from herd.errors import LeaderUnavailable
from herdbook.node import here
from herdbook.node.roles import OF_CLUSTER, Service, write_client_file
from herdbook.node.settings import NodeSettings, RepairTable, Role
from herdbook.zookeeper_server import free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


async def test_the_role_repair_tells_at_its_metrics_that_it_is_the_auditor(tmp_path: Path) -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    store = await ZooKeeperStore.connect(hosts, chroot=chroot, make=True)
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    settings = NodeSettings(
        roles=(Role.REPAIR,),
        data=str(tmp_path),
        url=f"herdbook://{hosts}{chroot}",
        repair=RepairTable(metrics=address),
    )
    served, ended = asyncio.Event(), asyncio.Event()
    service = Service(settings, lambda _: served.set(), ended, lambda: "")
    running = asyncio.ensure_future(OF_CLUSTER[Role.REPAIR](service))
    try:
        async with asyncio.timeout(20):
            await served.wait()
            while "\nherdbook_repair_auditor 1.0" not in (
                text := await asyncio.to_thread(page, address)
            ):
                assert "\nherdbook_repair_auditor 0.0" in text and not running.done()
            assert "\nherdbook_repair_tries_blocked 0.0" in text
    finally:
        ended.set()
        await running
        await store.close()


def test_processes_of_a_node_that_write_its_clients_file_at_once_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(data=str(tmp_path), url="herdbook://127.0.0.1:2181/herd")
    settings.own_folder.mkdir()
    replace = Path.replace

    def another_is_quicker(new: Path, file: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        write_client_file(settings)
        return replace(new, file)

    monkeypatch.setattr(Path, "replace", another_is_quicker)
    file = write_client_file(settings)
    assert 'url = "herdbook://127.0.0.1:2181/herd"' in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_nodes_folder_that_vanished_is_not_created_again(tmp_path: Path) -> None:
    settings = NodeSettings(data=str(tmp_path / "disk"), url="herdbook://127.0.0.1:2181/herd")
    for mount_point in (False, True):
        if mount_point:
            (tmp_path / "disk").mkdir()
        with pytest.raises(FolderError, match=r"is missing.*mount"):
            write_client_file(settings)
    assert not any((tmp_path / "disk").iterdir())


ERRORS = (
    LeaderUnavailable("nobody leads", hint="wait"),
    BlobNotFound("there is no moo"),
    SubmitRefused("the herd is full"),
    InvalidRequest("a port of\nanother"),
    OSError(5, "the disk is gone"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
async def test_a_role_that_fails_is_reported_in_one_line_without_a_traceback(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(service: Service) -> None:
        raise error

    async def fails_at_its_end(service: Service) -> None:
        service.serving("here")
        await service.ended.wait()
        raise LeaderUnavailable("nobody leads any more")

    monkeypatch.setattr(here, "OF_CLUSTER", {Role.BOOKIE: fails_at_its_end, Role.HTTP: fails})
    settings = NodeSettings(data=str(tmp_path), url="herdbook://127.0.0.1:2181/herd")
    settings.own_folder.mkdir()
    roles = here.Roles(settings, (Role.BOOKIE, Role.HTTP), lambda role, at: None)
    with pytest.raises((EngineError, OSError)) as raised:
        await roles.run(asyncio.Event())
    line = here.line_of(raised.value)
    assert " ".join(str(error).split()) in line and "\n" not in line
    assert "bookie ended: LeaderUnavailable: nobody leads any more" in caplog.text
    assert not any(each.exc_info for each in caplog.records)


async def test_a_server_that_has_started_leaves_what_is_loaded_out_of_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ended = asyncio.Event()

    async def serves(service: Service) -> None:
        service.serving("here")
        done.append("served")
        await service.ended.wait()

    def told(role: Role, at: str) -> None:
        done.append(role.value)
        if role is Role.HTTP:
            ended.set()

    monkeypatch.setattr(here, "keep_loaded", lambda: done.append("kept"))
    monkeypatch.setattr(here, "OF_CLUSTER", {Role.BOOKIE: serves, Role.HTTP: serves})
    settings = NodeSettings(data=str(tmp_path), url="herdbook://127.0.0.1:2181/herd")
    settings.own_folder.mkdir()
    roles = here.Roles(settings, (Role.BOOKIE, Role.HTTP), told)
    await roles.run(ended)
    # Once, when the last role begins to serve.
    assert done == ["bookie", "served", "kept", "http", "served"]
