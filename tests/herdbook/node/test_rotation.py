"""The page about replacing secrets, run on a real node while clients keep using it."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import herdbook
from engine.errors import AccessRefused, EngineError, Unauthorized
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.transport.security import Security
from herd.errors import Error
from herd.reaching import open_any
from herdbook.zookeeper_server import find_jars, find_java
from tests.acceptance.machines import until
from tests.docs.blocks import Block, blocks_of
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.engine.transport.certificates import Authority
from tests.engine.transport.rotating import authorities_in
from tests.herdbook.node.commands import Running, running
from tests.herdbook.node.test_serve import address

PAGE = "docs/howto/rotate-secrets.md"
ETC = "/etc/herdbook"
READ = "secrets, certificates and users were read again"
KEPT = "what was read before stays in use"
OLD = "the cows come home at six"
PROCESSES = 4
_PAUSE_S = 0.05


class Site:
    """A folder in place of /etc/herdbook, with the settings of a node and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.etc.mkdir()
        self.old, self.new = authorities_in(folder)
        self.http = address()
        self.url = f"herdbook://{shared_zookeeper().hosts}{fresh_chroot()}"
        (self.etc / "secret").write_text(OLD)
        (self.etc / "secret").chmod(0o600)
        shutil.copy(self.old.path, self.etc / "authorities.pem")
        shutil.copy(self.new.path, self.etc / "authorities.new")
        self._certify(self.old, "node", "node.pem", "node.key")
        self._certify(self.new, "node", "node.new.pem", "node.new.key")
        self.client = self._told("client", self.old)
        (self.etc / "node.toml").write_text(
            f"""
roles = ["bookie", "herd", "broker", "http"]
data = "{folder}/node"
url = "{self.url}"
[security]
secret_file = "secret"
certificate = "node.pem"
private_key = "node.key"
authorities = "authorities.pem"
[bookie]
folders = ["{folder}/one", "{folder}/two", "{folder}/three"]
listen = "{address()}"
[herd]
listen = "{address()}"
[broker]
listen = "{address()}"
grpc = "{address()}"
[http]
listen = "{self.http}"
certificate = "node.pem"
private_key = "node.key"
"""
        )

    def certify_client(self) -> None:
        """From now on clients show a certificate of the new authority."""
        self._told("client", self.new)

    def trusting(self, authorities: Path) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=authorities)

    def _told(self, name: str, authority: Authority) -> Path:
        """The configuration of a client, which is replaced as a whole."""
        where = f"{name}-{authority.path.stem}"
        self._certify(authority, where, f"{where}.pem", f"{where}.key")
        new = self.etc / "new.toml"
        new.write_text(
            f"""
[security]
secret_file = "secret"
certificate = "{where}.pem"
private_key = "{where}.key"
authorities = "authorities.pem"
"""
        )
        return new.rename(self.etc / f"{name}.toml")

    def _certify(self, authority: Authority, name: str, certificate: str, key: str) -> None:
        signed = authority.sign(name)
        shutil.copy(signed.certificate, self.etc / certificate)
        shutil.copy(signed.private_key, self.etc / key)


class Asking:
    """A client that sends requests repeatedly, in its own thread."""

    def __init__(self, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.answered = 0
        self.refused: list[Exception] = []

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        number = 0
        # Only a few requests, because the node has other work to do.
        while not self._ended.wait(_PAUSE_S):
            number += 1
            try:
                self._ask(number)
            except (EngineError, Error, httpx.HTTPError, OSError) as error:
                self.refused.append(error)
            self.answered += 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def node(site: Site) -> Iterator[Running]:
    config = str(site.etc / "node.toml")
    with running(site.folder / "errors", "serve", "--config", config) as command:
        command.until("ready")
        yield command
        assert command.end() == 0


def followed(block: Block, site: Site, node: Running) -> None:
    """Run the commands of a block, with a `systemctl` that knows only the node."""
    tools = site.folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "systemctl").write_text(
        f'#!/bin/sh\n[ "$*" = "reload herdbook" ] && kill -HUP {node.process.pid}\n'
    )
    (tools / "systemctl").chmod(0o700)
    subprocess.run(
        ["bash", "-e", "-c", block.text.replace(ETC, str(site.etc))],
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        check=True,
        timeout=30,
    )


def lines_of(node: Running) -> Counter[str]:
    """How often the node's processes have logged that they read files, or kept the old ones."""
    errors = node.errors()
    return Counter({what: errors.count(what) for what in (READ, KEPT)})


async def have_said(node: Running, what: str, before: Counter[str]) -> None:
    """Wait until each process has logged this once more, and none has logged the other."""
    expected = before + Counter({what: PROCESSES})

    async def said() -> bool:
        found = lines_of(node)
        assert found <= expected, node.errors()
        return found == expected

    await until(f"all processes say: {what}", said)


@contextmanager
def trickle(site: Site) -> Iterator[list[Asking]]:
    """Clients that connect again each time, over each protocol, and one that stays connected."""
    with herdbook.connect(site.url) as kept, kept.sql(autocommit=True) as session:
        session.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        bucket = kept.blobs.create_bucket("milk")

        def stay(number: int) -> None:
            session.execute(f"INSERT INTO cow VALUES ({number})")
            bucket.put("elsa", b"moo")
            kept.tasks.submit("milk", {"number": number})

        def come(number: int) -> None:
            with herdbook.connect(site.url) as cluster:
                with cluster.sql() as fresh:
                    fresh.execute("SELECT count(*) FROM cow")
                cluster.tasks.submit("milk", {"fresh": number})
                assert cluster.blobs.bucket("milk").get("elsa") == b"moo"

        def browse(_number: int) -> None:
            trusted = site.trusting(site.etc / "authorities.pem")
            answer = httpx.get(f"https://{site.http}/healthz", verify=trusted, timeout=30)
            answer.raise_for_status()

        with Asking(stay) as one, Asking(come) as two, Asking(browse) as three:
            yield [one, two, three]


async def test_no_request_is_refused_while_secret_authority_and_certificate_are_replaced(
    site: Site, node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERDBOOK_CONFIG", str(site.client))
    blocks = [block for block in blocks_of(PAGE) if block.executed]
    reloads = [block for block in blocks if "systemctl reload" in block.text]
    assert len(reloads) == 6
    with trickle(site) as asking:
        for block in blocks:
            said = lines_of(node)
            followed(block, site, node)
            if block in reloads:
                await have_said(node, READ, said)
                herdbook.read_secrets_again()
            if "node.new.pem" in block.text:
                site.certify_client()
                herdbook.read_secrets_again()
            before = [each.answered for each in asking]

            async def went_on(before: list[int] = before) -> bool:
                # One that had begun before the step, and one after it.
                return all(
                    each.answered >= count + 2 for each, count in zip(asking, before, strict=True)
                )

            await until(f"all clients went on after {block.place}", went_on)
        assert [each.refused for each in asking] == [[], [], []]
    assert OLD not in (site.etc / "secret").read_text()
    with pytest.raises(ssl.SSLCertVerificationError):
        reader = asyncio.open_connection(*site.http.split(":"), ssl=site.trusting(site.old.path))
        await reader
    stranger = Security(OLD.encode(), authorities=site.new.path)
    with pytest.raises((AccessRefused, Error), match="secret"):
        async with open_any(site.url, security=stranger) as herd:
            await (await herd.session()).execute("SELECT 1")


async def test_the_password_of_zookeeper_is_another_one_after_what_the_page_says(
    tmp_path: Path,
) -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    words = {"zookeeper-password": "the old word", "zookeeper-password.new": "the new word"}
    old, new = (ZooKeeperSettings(user="herdbook", password=word) for word in words.values())
    store = await ZooKeeperStore.connect(hosts, chroot=chroot, settings=old, make=True)
    await store.create("/barn/cow", b"moo")
    await store.close()
    for name, word in words.items():
        (tmp_path / name).write_text(f"{word}\n")
    jars = ":".join(map(str, find_jars()))
    tool = tmp_path / "zkCli.sh"
    tool.write_text(
        f'#!/bin/sh\nexec {find_java()} -cp {jars} org.apache.zookeeper.ZooKeeperMain "$@"\n'
    )
    tool.chmod(0o700)
    [block] = [block for block in blocks_of(PAGE) if "zkCli.sh" in block.text]
    text = block.text.replace(ETC, str(tmp_path)).replace("zookeeper-1:2181", hosts)
    await asyncio.to_thread(
        subprocess.run,
        ["bash", "-e", "-c", text.replace("/prod ", f"{chroot} ")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        timeout=30,
    )
    with pytest.raises(Unauthorized):
        await ZooKeeperStore.connect(hosts, chroot=chroot, settings=old)
    store = await ZooKeeperStore.connect(hosts, chroot=chroot, settings=new)
    assert await store.set("/barn/cow", b"", 0) == 1
    await store.close()


async def test_a_node_that_is_told_to_read_what_is_not_there_says_so_and_goes_on(
    site: Site, node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERDBOOK_CONFIG", str(site.client))
    kept, said = site.etc / "secret", lines_of(node)
    moved = kept.rename(site.etc / "moved")
    node.process.send_signal(signal.SIGHUP)
    await have_said(node, KEPT, said)
    moved.rename(kept)
    with herdbook.connect(site.url) as cluster, cluster.sql() as session:
        assert session.execute("SELECT 1").fetchall() == [(1,)]
