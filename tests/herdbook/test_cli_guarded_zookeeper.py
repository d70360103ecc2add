"""Every command reaches a cluster whose ZooKeeper asks for a user, by its configuration file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from herdbook.cli.main import app
from tests.acceptance.machines import free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.node.commands import running

CLIENT = """
url = "{url}"
[security]
secret_file = "secret"
[zookeeper]
user = "cow"
password_file = "password"
"""
NODE = """
url = "{url}"
data = "data"
roles = ["bookie", "herd", "broker"]
[bookie]
listen = "127.0.0.1:{bookie}"
folders = ["disk-1", "disk-2", "disk-3"]
[herd]
listen = "127.0.0.1:{herd}"
[broker]
listen = "127.0.0.1:{broker}"
grpc = "127.0.0.1:{grpc}"
[security]
secret_file = "secret"
[zookeeper]
user = "cow"
password_file = "password"
"""


class Herder:
    """Whoever has the configuration file of a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"herdbook://{shared_zookeeper().hosts}{fresh_chroot()}"
        self.file = folder / "config.toml"
        self.file.write_text(CLIENT.format(url=self.url))
        for name, text in (("secret", "known to this cluster alone"), ("password", "moo\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        ports = {name: free_port() for name in ("bookie", "herd", "broker", "grpc")}
        self.node = folder / "node.toml"
        self.node.write_text(NODE.format(url=self.url, **ports))

    def does(self, *words: str) -> str:
        """What a command prints that works."""
        environment = {"HERDBOOK_CONFIG": str(self.file), "HERDBOOK_URL": ""}
        answer = CliRunner().invoke(app, list(words), env=environment)
        assert answer.exit_code == 0, (words, answer.output)
        return answer.stdout


@pytest.fixture(scope="module")
def herder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Herder]:
    made = Herder(tmp_path_factory.mktemp("guarded"))
    told = ("serve", "--config", str(made.node), "--one-process")
    with running(made.folder / "log", *told) as node:
        node.until("ready")
        yield made
        assert node.end() == 0


def test_ledgers_bookies_and_repair_are_looked_at(herder: Herder) -> None:
    assert herder.does("bookie", "ls", "--json").count("writable") == 3
    herder.does("bookie", "check")
    assert "CLOSED" in herder.does("ledger", "ls") or "OPEN" in herder.does("ledger", "ls")
    assert json.loads(herder.does("repair", "status", "--json"))
    herder.does("store", "check")


def test_tables_are_written_and_taken_out_and_in(herder: Herder) -> None:
    herder.does("sql", "-c", "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
    herder.does("sql", "-c", "INSERT INTO cow VALUES (1, 'Elsa')")
    rows = herder.folder / "cow.csv"
    herder.does("export", herder.url, "cow", str(rows))
    herder.does("sql", "-c", "DELETE FROM cow")
    herder.does("import", herder.url, "cow", str(rows))
    assert "Elsa" in herder.does("sql", "-c", "SELECT name FROM cow")
    assert "Elsa" in herder.does("changes", herder.url, "--table", "cow", "--json")
    herder.does("checkpoint", herder.url)
    herder.does("backup", herder.url, str(herder.folder / "default.backup"))


def test_objects_and_tasks_are_put_there(herder: Herder) -> None:
    herder.does("blob", "mb", "photos")
    herder.does("blob", "put", str(herder.node), "photos/")
    assert "node.toml" in herder.does("blob", "ls", "photos")
    herder.does("task", "submit", "milk", "--tenant", "elsa")
    assert json.loads(herder.does("task", "ls", "--json"))


def test_users_are_added(herder: Herder) -> None:
    (herder.folder / "word").write_text(os.urandom(12).hex())
    (herder.folder / "word").chmod(0o600)
    herder.does("user", "add", "ann", "--admin", "--password-file", str(herder.folder / "word"))
    assert "ann" in herder.does("user", "ls")
