"""`--check` reports the errors of a start, with the same messages as the start."""

import asyncio
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import engine
from engine.bookie.folder import FILE_NAME, FolderIdentity, write_identity
from engine.bookie.index_memory import MemoryIndex
from engine.errors import EngineError
from engine.folder.lock import FolderLock
from engine.folder.owner import FolderPorts
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.server import BookieServer
from engine.server_settings import ServerSettings
from herd.errors import Error as StoreError
from herd.nodes.states import Identity, identity_of
from herdbook.archive.manifest import STORE
from herdbook.node.reading import gather
from herdbook.node.refusals import refusals_of
from herdbook.node.roles import configuration_of
from herdbook.node.serving import serve_node
from herdbook.node.settings import NodeSettings
from tests.engine.transport.certificates import Authority

URL = "herdbook://127.0.0.1:1/prod"
FREE = dict.fromkeys(("broker.listen", "broker.grpc", "http.listen"), "127.0.0.1:0")
CLUSTER = {"url": URL, "bookie.listen": "127.0.0.1:0", **FREE}


class Place:
    """A node's folder, and locks and ports that are held meanwhile."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.bookie = folder / "disk" / "bookie"
        self.stack = stack

    def settings(self, told: dict[str, Any]) -> NodeSettings:
        """A node's settings, in addition to those that all these nodes have."""
        settings, errors = gather(None, {}, {"data": str(self.data), **FREE, **told})
        assert not errors
        return settings

    def file(self, name: str, content: bytes) -> str:
        (self.folder / name).write_bytes(content)
        (self.folder / name).chmod(0o600)
        return str(self.folder / name)

    def pair(self) -> tuple[str, str]:
        """A certificate, and the key of another one."""
        authority = Authority(self.folder, "ca")
        one, other = authority.sign("one"), authority.sign("other")
        assert other.private_key is not None
        return str(one.certificate), str(other.private_key)

    def taken(self) -> str:
        listening = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{listening.getsockname()[1]}"

    def lock(self, folder: Path) -> None:
        lock = FolderLock.of(folder)
        self.stack.callback(lock.close)
        assert lock.try_take()

    def identity(self, **changed: Any) -> FolderIdentity:
        """Make the bookie's folder one that was used."""
        identity = msgspec.structs.replace(FolderIdentity("b1", "cluster", 1, 1), **changed)
        SystemDisk(self.bookie).make_folder("journal")
        write_identity(SystemDisk(self.bookie), identity)
        return identity

    async def start_node(self, settings: NodeSettings) -> None:
        """As `herdbook serve` does."""
        async with asyncio.timeout(20):
            await serve_node(settings, lambda line: None)

    async def start_bookies(self, settings: NodeSettings) -> None:
        """As the role does, once it has reached the metadata store."""
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            server = await BookieServer.start(
                settings.bookie_folders(),
                store=MemoryTree("cluster").session(),
                ports=FolderPorts(
                    SystemClock(), random.Random(1), workers, SystemDisk, lambda path: MemoryIndex()
                ),
                settings=ServerSettings(
                    listen=settings.bookie.listen, advertise=settings.bookie.advertise
                ),
                security=configuration_of(settings).make_security(),
            )
            await server.close()
        finally:
            await workers.close()


class Cause(NamedTuple):
    """A cause of a refused start: how to create it, the node's settings, and what refuses."""

    name: str
    make: Callable[[Place], dict[str, Any]]
    start: Callable[[Place, NodeSettings], Any] = Place.start_node


def of_bookie(place: Place, **more: Any) -> dict[str, Any]:
    return {**CLUSTER, "roles": ["bookie"], "bookie.folders": [str(place.bookie)], **more}


def tls_of(place: Place, table: str, roles: list[str]) -> dict[str, Any]:
    certificate, key = place.pair()
    return {"roles": roles, f"{table}.certificate": certificate, f"{table}.private_key": key}


def other_things(place: Place) -> dict[str, Any]:
    place.data.mkdir()
    (place.data / "letters").touch()
    return {}


def backups(place: Place) -> dict[str, Any]:
    place.data.mkdir()
    (place.data / STORE).write_bytes(b"the cluster's id")
    return {}


def one_bookies(place: Place) -> dict[str, Any]:
    place.identity()
    (place.bookie / "lock").touch()
    place.bookie.rename(place.data)
    return {}


def no_metadata(place: Place) -> dict[str, Any]:
    (place.data / "bookie-1").mkdir(parents=True)
    (place.data / "lock").touch()
    return {}


def whole_store(place: Place) -> dict[str, Any]:
    (place.bookie / "metadata").mkdir(parents=True)
    return of_bookie(place)


def others_files(place: Place) -> dict[str, Any]:
    place.bookie.mkdir(parents=True)
    (place.bookie / "letters").touch()
    return of_bookie(place)


def in_use(place: Place) -> dict[str, Any]:
    place.lock(place.bookie)
    return of_bookie(place)


def damaged(place: Place) -> dict[str, Any]:
    place.identity()
    (place.bookie / FILE_NAME).write_bytes((place.bookie / FILE_NAME).read_bytes()[:-1])
    return of_bookie(place)


def no_identity(place: Place) -> dict[str, Any]:
    place.identity()
    (place.bookie / FILE_NAME).rename(place.bookie / "journal" / "x")
    (place.bookie / "lock").touch()
    return of_bookie(place)


def newer(place: Place) -> dict[str, Any]:
    place.identity()
    content = bytearray((place.bookie / FILE_NAME).read_bytes())
    content[9] = 9
    (place.bookie / FILE_NAME).write_bytes(content)
    return of_bookie(place)


def no_journal(place: Place) -> dict[str, Any]:
    place.identity()
    (place.bookie / "journal").rmdir()
    return of_bookie(place)


def new_journal(place: Place) -> dict[str, Any]:
    place.identity(journal=True)
    return of_bookie(place)


CAUSES = (
    Cause("a port that is in use", lambda at: {"http.listen": at.taken()}),
    Cause(
        "an address of another machine",
        lambda at: {"roles": ["http"], "http.listen": "192.0.2.1:7380", "insecure": True},
    ),
    Cause("http without a certificate", lambda at: {"http.listen": "192.0.2.1:7380"}),
    Cause("http's key of another certificate", lambda at: tls_of(at, "http", ["http"])),
    Cause("a broker's key of another one", lambda at: tls_of(at, "broker", ["broker"])),
    Cause("users that are none", lambda at: {"broker.users": at.file("users", b"moo")}),
    Cause("a secret that is too short", lambda at: {"security.secret_file": at.file("s", b"moo")}),
    Cause("a folder with other things in it", other_things),
    Cause("a folder of backups", backups),
    Cause("a bookie's folder that is served as a store", one_bookies),
    Cause("a store without its metadata", no_metadata),
    Cause("a store that is a bookie's folder", whole_store, Place.start_bookies),
    Cause("a bookie's folder with other things in it", others_files, Place.start_bookies),
    Cause("a bookie's folder in use", in_use, Place.start_bookies),
    Cause("an identity that is cut short", damaged, Place.start_bookies),
    Cause("a journal without an identity", no_identity, Place.start_bookies),
    Cause("a folder of a newer version", newer, Place.start_bookies),
    Cause("a journal that is gone", no_journal, Place.start_bookies),
    Cause("a journal that is new", new_journal, Place.start_bookies),
    Cause(
        "a bookie's key of another certificate",
        lambda at: of_bookie(at) | tls_of(at, "security", ["bookie"]),
        Place.start_bookies,
    ),
    Cause(
        "authorities without a certificate",
        lambda at: of_bookie(at, **{"security.authorities": str(Authority(at.folder, "ca").path)}),
        Place.start_bookies,
    ),
    Cause(
        "a bookie that is advertised nowhere",
        lambda at: of_bookie(at, **{"bookie.advertise": "nowhere"}),
        Place.start_bookies,
    ),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda each: each.name.replace(" ", "-"))
async def test_the_check_reports_the_errors_of_a_start_in_the_same_words(
    place: Place, cause: Cause
) -> None:
    settings = place.settings(cause.make(place))
    before = sorted(place.folder.rglob("*"))
    found = refusals_of(settings)
    assert sorted(place.folder.rglob("*")) == before, "looking changes nothing"
    with pytest.raises((EngineError, OSError)) as raised:
        await cause.start(place, settings)
    words = " ".join(str(raised.value).split())
    assert any(words in line for line in found.errors), (words, found)


async def test_nothing_is_refused_if_a_node_can_start(place: Place) -> None:
    async with engine.open(place.data):
        pass
    assert refusals_of(place.settings({})) == ([], [])
    place.identity()
    assert refusals_of(place.settings(of_bookie(place))) == ([], [])
    await place.start_bookies(place.settings(of_bookie(place)))


def test_one_damaged_disk_of_several_is_a_warning(place: Place) -> None:
    damaged(place)
    folders = [str(place.bookie), str(place.folder / "disk-2")]
    errors, [warning] = refusals_of(place.settings(of_bookie(place, **{"bookie.folders": folders})))
    assert not errors and f"the bookie in {place.bookie} does not start" in warning


def test_copies_and_folders_of_several_clusters_are_reported(place: Place) -> None:
    place.identity()
    copy, other = place.folder / "copy", place.folder / "other"
    shutil.copytree(place.bookie, copy)
    SystemDisk(other).make_folder("journal")
    write_identity(SystemDisk(other), FolderIdentity("b2", "another", 1, 1))
    folders = [str(place.bookie), str(copy), str(other)]
    errors, _ = refusals_of(place.settings(of_bookie(place, **{"bookie.folders": folders})))
    assert any(f"{copy} is a copy of another folder" in each for each in errors)
    assert any("several clusters" in each and "another" in each for each in errors)


def test_a_node_of_another_cluster_and_one_in_use_are_reported_in_the_words_of_the_start(
    place: Place,
) -> None:
    place.identity()
    herd = place.data / "herd"
    herd.mkdir(parents=True)
    (herd / "node").write_bytes(msgspec.json.encode(Identity("n1", "another")))
    place.lock(herd / "lock")
    told = of_bookie(place, **{"roles": ["bookie", "herd"], "herd.listen": "127.0.0.1:0"})
    errors, _ = refusals_of(place.settings(told))
    with pytest.raises(StoreError) as raised:
        identity_of(herd, "cluster", "n2")
    assert any(str(raised.value) in each for each in errors), errors
    assert any(f"{herd} is in use by another node" in each for each in errors)


def test_if_a_node_already_runs_only_that_is_reported_and_not_its_ports(place: Place) -> None:
    told = {"http.listen": place.taken()}
    assert refusals_of(place.settings(told)).errors
    place.lock(place.data / ".node")
    errors, [warning] = refusals_of(place.settings(told))
    assert not errors and "a node already runs in" in warning


def test_ports_that_a_killed_node_may_still_hold_are_a_warning(place: Place) -> None:
    told = {"http.listen": place.taken()}
    (place.data / ".node").mkdir(parents=True)
    (place.data / ".node" / "node.json").touch()
    errors, [warning] = refusals_of(place.settings(told))
    assert not errors and "is in use" in warning


def test_http_for_other_machines_is_reported_to_wait_for_a_user(place: Place) -> None:
    told = tls_of(place, "http", ["http"])
    told["http.private_key"] = told["http.certificate"].replace(".pem", ".key")
    settings = place.settings(told | {"http.listen": "0.0.0.0:7380"})
    [hint] = [each for each in refusals_of(settings).warnings if each.startswith("http.listen")]
    assert "503" in hint and "herdbook user add NAME --admin" in hint
    open_to_all = place.settings(told | {"http.listen": "0.0.0.0:7380", "insecure": True})
    assert not refusals_of(open_to_all).warnings


def test_a_password_that_is_not_text_is_reported(place: Place) -> None:
    file = place.file("password", b"\xff\xfe")
    told = of_bookie(place, **{"zookeeper.user": "elsa", "zookeeper.password_file": file})
    assert f"zookeeper: {file} is not a text file" in refusals_of(place.settings(told)).errors
