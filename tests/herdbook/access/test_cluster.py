"""Users of a real cluster: ZooKeeper, bookies, a node of tablespaces and a broker as processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
from typer.testing import CliRunner, Result

import herdbook
import herdbook.spark
from blobit.errors import AccessDenied as NamesDenied
from broker.errors import AccessDenied as TasksDenied
from engine.access.tokens import READ, key_of, verify
from engine.application import Application
from engine.errors import CannotRead, EngineError, NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.place import Place, held_client, let_go
from engine.transport.security import Security
from herd import place as herds
from herd.checkpoint.manifest import Pin, decode_checkpoints
from herd.errors import AccessDenied
from herd.reaching import open_any
from herd.snapshot.pinning import pin_checkpoint
from herdbook.cli.main import app
from tests.acceptance.machines import free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

SECRET: Final = "a secret that nobody but nodes may see"
WORDS: Final = {name: f"the word of {name}, and nobody's else" for name in ("ann", "ben", "cat")}
_LOGGING: Final = (
    "import logging, sys; logging.basicConfig(level=logging.DEBUG); "
    "from herdbook.cli.main import main; main()"
)
START_TIMEOUT_S: Final = 60


class House:
    """The cluster, and where its processes write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"herdbook://{shared_zookeeper().hosts}{fresh_chroot()}"
        self.node = f"127.0.0.1:{free_port()}"
        self.nodes = f"herdbook://{self.node}"
        """The url of those who do not reach ZooKeeper."""
        self.broker = f"127.0.0.1:{free_port()}"
        self.http = f"http://127.0.0.1:{free_port()}"
        self.node_file = folder / "node.toml"
        self.secret_file = folder / "secret"
        self.secret_file.write_text(SECRET)
        self.secret_file.chmod(0o600)
        self.node_file.write_text('[security]\nsecret_file = "secret"\n[audit]\nfolder = "audit"\n')

    @property
    def zookeeper(self) -> str:
        return self.url.removeprefix("herdbook://")

    @contextmanager
    def running(
        self, name: str, *arguments: str, waits: bool = True
    ) -> "Iterator[subprocess.Popen[bytes]]":
        """A process of `herdbook` that logs everything; if it `waits`, from its first line on."""
        environment = {**os.environ, "HERDBOOK_URL": "", "HERDBOOK_CONFIG": str(self.node_file)}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _LOGGING, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
            assert process.stdout is not None
            try:
                assert not waits or process.stdout.readline()
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(START_TIMEOUT_S)
                process.stdout.close()

    def command(self, *arguments: str, typed: str | None = None) -> str:
        """What a command of an administrator's machine prints."""
        environment = {"HERDBOOK_CONFIG": str(self.node_file)}
        named = [*arguments, "--url", self.url]
        answer = CliRunner().invoke(app, named, input=typed, env=environment)
        assert answer.exit_code == 0, answer.output
        return answer.stdout.strip()

    def logs(self) -> str:
        """Everything that the processes have written."""
        files = [*self.folder.glob("*.log"), *(self.folder / "audit").glob("*")]
        return "\n".join(file.read_text(errors="replace") for file in files)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("cluster"))
    disks = [part for n in range(3) for part in ("--data", str(made.folder / f"disk-{n}"))]
    node = ("--data", str(made.folder / "node"), "--url", made.url, "--listen", made.node)
    broker = ("--grpc", made.broker, "--listen", made.http.removeprefix("http://"))
    state = ("--state", str(made.folder / "tasks"), "--url", made.url)
    secret = ("--secret-file", str(made.secret_file))
    with ExitStack() as stack:
        bookies = ("--zookeeper", made.zookeeper, "--listen", "127.0.0.1:0", *disks)
        stack.enter_context(made.running("bookies", "bookie", *secret, *bookies))
        stack.enter_context(made.running("herd", "herd", "node", *secret, *node))
        stack.enter_context(made.running("broker", "task", "serve", *broker, *state))
        made.command("herd", "create", "shop")
        for name, word in WORDS.items():
            more = ("--admin",) if name == "ann" else ()
            made.command("user", "add", name, "--password-file", "-", *more, typed=word)
        made.command("user", "grant", "ben", "tablespace", "shop", "admin")
        made.command("user", "grant", "ben", "tenant", "elsa", "write")
        made.command("user", "grant", "cat", "bucket", "letters", "read")
        yield made


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that knows no secret."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HERDBOOK_CONFIG", raising=False)


@pytest.mark.usefixtures("stranger")
def test_a_user_works_with_tables_and_tasks_and_reads_what_they_may(house: House) -> None:
    with herdbook.connect(house.nodes, user="ben", password=WORDS["ben"]) as cluster:
        with cluster.sql("shop", autocommit=True) as connection:
            connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
            connection.execute("INSERT INTO cow VALUES (1, 'Alma')")
            connection.execute("CHECKPOINT")
        assert cluster.tasks.submit("milk", b"", tenant="elsa").id
        with pytest.raises(TasksDenied):
            cluster.tasks.submit("milk", b"", tenant="rosa")
    token = house.command("user", "token", "ben")
    with herdbook.connect(house.nodes, token=token) as cluster, cluster.sql("shop") as connection:
        assert connection.execute("SELECT name FROM cow").fetchall() == [("Alma",)]


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    "login",
    [Security(), Security(user="ben", password=WORDS["cat"]), Security(token="hbt_0_0")],
    ids=["nothing", "wrong", "token"],
)
def test_who_proves_nothing_is_refused(house: House, login: Security) -> None:
    async def ask() -> None:
        async with open_any(house.nodes, security=login) as herd:
            await herd.session("shop")

    with pytest.raises(AccessDenied):
        asyncio.run(ask())


@pytest.mark.usefixtures("stranger")
def test_a_user_who_may_not_reach_names_is_told_so_and_not_to_try_again(house: House) -> None:
    with herdbook.connect(house.nodes, user="cat", password=WORDS["cat"]) as cluster:
        for call in (cluster.blobs.buckets, partial(cluster.blobs.bucket, "letters")):
            with pytest.raises(NamesDenied, match=r"cat may not read .* over HTTP"):
                call()


@pytest.mark.usefixtures("stranger")
def test_a_user_who_submits_what_is_too_big_for_the_log_is_refused_for_good(house: House) -> None:
    with herdbook.connect(house.nodes, user="ben", password=WORDS["ben"]) as cluster:
        with pytest.raises(TasksDenied, match="big payloads") as told:
            cluster.tasks.submit("milk", bytes(3_000_000), tenant="elsa")
        assert not told.value.retryable


@pytest.mark.usefixtures("stranger")
def test_another_users_tables_are_out_of_reach_over_every_way(house: House) -> None:
    async def ask() -> str:
        node = Security(secret=SECRET.encode())
        async with open_any(house.url, security=node) as herd:
            session = await herd.session("shop")
            await session.execute("CREATE TABLE IF NOT EXISTS calf (id INT PRIMARY KEY)")
            await session.execute("INSERT INTO calf VALUES (1)")
            await session.execute("CHECKPOINT")
            await session.close()
        login = Security(user="cat", password=WORDS["cat"])
        async with open_any(house.nodes, security=login) as herd:
            with pytest.raises(AccessDenied):
                await herd.session("shop")
            return await herd.read_token()  # type: ignore[union-attr]

    token = asyncio.run(ask())
    ledger = checkpoint_of_shop(house)
    outcomes = {}
    for name, shown in (("cat", token), ("nobody", ""), ("ben", bens_token(house))):
        place = Place(url=house.nodes, token=shown)
        try:
            held = held_client(place)
            outcomes[name] = str(held.run(partial(read_all, held.client, ledger)))
        except (CannotRead, EngineError) as error:
            outcomes[name] = type(error).__name__
        let_go(place)
    assert int(outcomes.pop("ben")) > 0
    assert not [told for told in outcomes.values() if told.isdecimal()], outcomes


def checkpoint_of_shop(house: House) -> int:
    """The ledger of a checkpoint."""
    place = Place(url=house.url, secret_file=str(house.secret_file))
    held = held_client(place)
    try:
        for ledger_id in range(100):
            try:
                facts = held.run(partial(held.client.ledger_metadata, ledger_id))
            except NoSuchLedger:
                continue
            if facts.custom.get("owner") == b"herd:shop":
                return ledger_id
    finally:
        let_go(place)
    raise AssertionError("no ledger is of a checkpoint of shop")


def bens_token(house: House) -> str:
    async def ask() -> str:
        security = Security(user="ben", password=WORDS["ben"])
        async with open_any(house.nodes, security=security) as herd:
            return await herd.read_token()  # type: ignore[union-attr]

    return asyncio.run(ask())


async def read_all(client: LedgerClient, ledger: int) -> int:
    reader = await client.open_ledger(ledger, recover=False)
    return len([entry async for entry in reader.read(0, reader.last_add_confirmed)])


def test_sparks_driver_gets_a_token_for_its_user_and_shows_it_nowhere(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text(WORDS["ben"])
    (tmp_path / "word").chmod(0o600)
    config = tmp_path / "config.toml"
    config.write_text('[login]\nuser = "ben"\npassword_file = "word"\n')
    monkeypatch.setenv("HERDBOOK_CONFIG", str(config))
    before = herdbook.spark.place_of(house.nodes)
    place = herdbook.spark.with_token(before)
    assert before.needs_token and not place.needs_token
    assert verify(place.token, (key_of(SECRET.encode()),), READ, 0).user == "ben"
    assert place.token not in repr(place) and WORDS["ben"] not in str(place)
    assert place.at(None, "another").token == "another"
    herds.let_go(before)
    let_go(before)


def test_spark_pins_a_checkpoint_for_a_user_who_does_not_reach_zookeeper(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        herdbook.connect(house.nodes, user="ben", password=WORDS["ben"]) as cluster,
        cluster.sql("shop", autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE IF NOT EXISTS goat (id INT PRIMARY KEY)")
        connection.execute("UPSERT INTO goat VALUES (1)")
    (tmp_path / "word").write_text(WORDS["ben"])
    (tmp_path / "word").chmod(0o600)
    config = tmp_path / "config.toml"
    config.write_text('[login]\nuser = "ben"\npassword_file = "word"\n')
    monkeypatch.setenv("HERDBOOK_CONFIG", str(config))
    place = herdbook.spark.with_token(herdbook.spark.place_of(house.nodes))
    pinned = pin_checkpoint(place, Application("farm"), "shop", fresh=True)
    assert [pin.name for pin in pins_of_shop(house)] == [f"user:3:ben:{pinned.pin.name}"]
    pinned.pin.drop()
    assert not pins_of_shop(house)
    herds.let_go(place)
    let_go(place)


def pins_of_shop(house: House) -> tuple[Pin, ...]:
    """The pins of checkpoints, as an administrator sees them."""
    place = Place(url=house.url, secret_file=str(house.secret_file))
    held = held_client(place)
    try:
        store = held.client.store
        found = held.run(partial(store.get, "/herd/tablespaces/shop/checkpoints"))
        assert found is not None
        return decode_checkpoints(found.value).pins
    finally:
        let_go(place)


@pytest.mark.usefixtures("stranger")
def test_the_brokers_http_knows_the_same_users(house: House) -> None:
    url = f"{house.http}/api/v1/tasks"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, auth=("ben", WORDS["cat"])).status_code == 401
    assert httpx.get(url, auth=("ben", WORDS["ben"])).status_code == 200
    assert httpx.get(url, auth=("cat", WORDS["cat"])).status_code == 403
    token = house.command("user", "token", "ben", "--for", "1h")
    assert httpx.get(url, headers={"authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("known_by", ["secret", "login", "environment", "token"])
def test_commands_on_tasks_come_as_the_configuration_says(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known_by: str
) -> None:
    (tmp_path / "word").write_text(WORDS["ben"])
    (tmp_path / "word").chmod(0o600)
    if known_by == "secret":
        monkeypatch.setenv("HERDBOOK_CONFIG", str(house.node_file))
    elif known_by == "login":
        (tmp_path / "config.toml").write_text('[login]\nuser="ben"\npassword_file="word"\n')
        monkeypatch.setenv("HERDBOOK_CONFIG", str(tmp_path / "config.toml"))
    elif known_by == "environment":
        monkeypatch.setenv("HERDBOOK_USER", "ben")
        monkeypatch.setenv("HERDBOOK_PASSWORD_FILE", str(tmp_path / "word"))
    else:
        monkeypatch.setenv("HERDBOOK_TOKEN", house.command("user", "token", "ben"))

    submitted = task_command(house, "submit", "milk", "cow=elsa", "--tenant", "elsa")
    assert submitted.exit_code == 0, submitted.output
    [task] = [
        json.loads(line)
        for line in task_command(house, "ls", "--tenant", "elsa", "--json").stdout.splitlines()
        if json.loads(line)["id"] == int(submitted.stdout)
    ]
    assert task["status"] == "waiting"
    another = task_command(house, "submit", "milk", "--tenant", "rosa")
    limited = task_command(house, "set", "resource", "barn", "3")
    assert (another.exit_code, limited.exit_code) == ((0, 0) if known_by == "secret" else (1, 1))
    if known_by != "secret":
        assert "AccessDenied: user ben may only act for the tenant elsa" in another.stderr
        assert "AccessDenied: user ben is no administrator" in limited.stderr


@pytest.mark.usefixtures("stranger")
def test_commands_on_tasks_are_refused_to_who_proves_nothing(house: House) -> None:
    refused = task_command(house, "ls")
    assert refused.exit_code == 1 and refused.stderr.startswith("AccessRefused: ")


def task_command(house: House, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["task", *arguments, "--url", house.nodes])


@pytest.mark.usefixtures("stranger")
def test_no_secret_stands_in_any_log_and_the_audit_tells_who_came(house: House) -> None:
    token = house.command("user", "token", "ben")
    with herdbook.connect(house.nodes, token=token) as cluster:
        cluster.tasks.submit("milk", b"", tenant="elsa")
        read_token = bens_token(house)
    told = house.logs()
    assert "DEBUG" in told
    for secret in (SECRET, *WORDS.values(), token, token.split("_", 2)[2], read_token):
        assert secret not in told
    audited = [
        json.loads(line)
        for file in (house.folder / "audit").glob("audit-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    logins = [each for each in audited if each["what"].startswith("log in")]
    assert {each["where"] for each in logins} >= {"herd", "broker"}
    assert any(each["who"] == "ben" and each["allowed"] for each in audited)
    assert any("users" in each["where"] or "system" in each["where"] for each in audited)
