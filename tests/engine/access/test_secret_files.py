"""Files of secrets that other users may read are refused, wherever they are named."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.access.secret_files import secret_in, why_not_private
from engine.errors import InvalidRequest
from engine.place import Place
from engine.transport.security import Security
from herdbook.cli.bookie import security_of
from herdbook.cli.main import app
from herdbook.finding import Configuration, LoginTable, SecurityTable, ZooKeeperTable
from herdbook.node.checking import check
from herdbook.node.settings import BrokerTable, HttpTable, NodeSettings
from herdbook.task_server import TaskServerSettings, read_users, serve_tasks
from tests.engine.transport.certificates import Authority

MODES = (0o644, 0o640, 0o604, 0o660, 0o602)


def written(folder: Path, mode: int, text: str = "known to this cluster alone") -> Path:
    """A file of a secret, of this user, who is not root."""
    file = folder / "a secret"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests, files are not root's."""
    monkeypatch.setattr("engine.access.secret_files._ROOT", -1)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("mode", MODES)
def test_a_secret_that_others_may_read_is_refused_with_what_mends_it(
    tmp_path: Path, mode: int
) -> None:
    file = written(tmp_path, mode)
    with pytest.raises(InvalidRequest) as caught:
        secret_in(file)
    said = str(caught.value)
    assert f"mode {mode:04o}" in said and said.endswith(f"chmod 600 '{file}'")
    file.chmod(0o600)
    assert secret_in(file) == b"known to this cluster alone"


def test_the_group_may_read_a_secret_of_root_as_kubernetes_mounts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.access.secret_files._ROOT", os.geteuid())
    for mode in (0o400, 0o440, 0o640):
        assert why_not_private(written(tmp_path, mode)) == ""
        (tmp_path / "a secret").chmod(0o600)
    for mode in (0o444, 0o660, 0o644):
        assert "chmod 600" in why_not_private(written(tmp_path, mode))
        (tmp_path / "a secret").chmod(0o600)


def test_the_mode_of_a_pipe_is_not_checked() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"moo\n")
        os.close(writing)
        assert secret_in(Path(f"/dev/fd/{reading}")) == b"moo"
    finally:
        os.close(reading)


def served(file: Path) -> None:
    """A broker whose users stand in the file."""
    read_users(file)


DOORS: dict[str, Callable[[Path], object]] = {
    "the configuration's secret": lambda file: Configuration(
        security=SecurityTable(secret_file=str(file))
    ).make_security(),
    "the configuration's login": lambda file: Configuration(
        login=LoginTable(user="ann", password_file=str(file))
    ).make_security(),
    "the configuration's token": lambda file: Configuration(
        login=LoginTable(token_file=str(file))
    ).make_security(),
    "ZooKeeper's password": lambda file: Configuration(
        zookeeper=ZooKeeperTable(user="herd", password_file=str(file))
    ).make_zookeeper(),
    "a command's secret": lambda file: security_of(file, None, None, None),
    "a place's secret": lambda file: Place(secret_file=str(file)).make_security(),
    "a place's password": lambda file: Place(zookeeper_password_file=str(file)).make_zookeeper(),
    "a file of users": served,
}


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("door", DOORS)
def test_every_reader_of_a_secret_refuses_a_file_that_others_may_read(
    tmp_path: Path, door: str
) -> None:
    file = written(tmp_path, 0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        DOORS[door](file)


@pytest.mark.parametrize("door", DOORS)
def test_every_reader_of_a_secret_refuses_an_empty_file(tmp_path: Path, door: str) -> None:
    """Before, such a file counted as no secret, and everybody was let in."""
    file = tmp_path / "empty"
    file.write_text(" \n")
    file.chmod(0o600)
    with pytest.raises(InvalidRequest, match="empty"):
        DOORS[door](file)


@pytest.mark.usefixtures("as_user")
def test_a_private_key_that_others_may_read_opens_no_wire(tmp_path: Path) -> None:
    signed = Authority(tmp_path, "barn").sign("node")
    files = signed.certificate, signed.private_key
    assert Security(b"", *files).server_context() is not None
    signed.private_key.chmod(0o644)
    security = Security(b"", *files)
    for context in (security.server_context, security.client_context):
        with pytest.raises(InvalidRequest, match=r"chmod 600 .*node\.key"):
            context()
    # A file with both is a key.
    both = tmp_path / "both.pem"
    both.write_text(signed.certificate.read_text() + signed.private_key.read_text())
    both.chmod(0o644)
    with pytest.raises(InvalidRequest, match=r"chmod 600 .*both\.pem"):
        Security(certificate=both).server_context()


@pytest.mark.usefixtures("as_user")
async def test_a_private_key_that_others_may_read_serves_no_http(tmp_path: Path) -> None:
    signed = Authority(tmp_path, "barn").sign("node")
    signed.private_key.chmod(0o644)
    folder = tmp_path / "data"
    folder.mkdir()
    settings = TaskServerSettings(
        "127.0.0.1:0", certificate=signed.certificate, private_key=signed.private_key
    )
    ended = asyncio.Event()
    ended.set()
    with pytest.raises(InvalidRequest, match=r"chmod 600 .*node\.key"):
        await serve_tasks(str(folder), settings, print, ended=ended)


@pytest.mark.usefixtures("as_user")
def test_a_node_is_told_of_each_secret_that_others_may_read(tmp_path: Path) -> None:
    file = str(written(tmp_path, 0o644))
    settings = NodeSettings(
        data=str(tmp_path / "data"),
        security=SecurityTable(secret_file=file, certificate=file, private_key=file),
        zookeeper=ZooKeeperTable(user="herd", password_file=file),
        broker=BrokerTable(users=file, certificate=file, private_key=file),
        http=HttpTable(certificate=file, private_key=file),
    )
    told = {line.partition(":")[0] for line in check(settings) if "chmod 600" in line}
    assert told == {
        *("security.secret_file", "security.private_key", "zookeeper.password_file"),
        *("broker.users", "broker.private_key", "http.private_key"),
    }
    Path(file).chmod(0o600)
    assert not [line for line in check(settings) if "chmod" in line]


@pytest.mark.usefixtures("as_user")
def test_serve_check_refuses_a_secret_that_others_may_read(tmp_path: Path) -> None:
    file = written(tmp_path, 0o644)
    words = ["serve", "--data", str(tmp_path / "data"), "--role", "bookie", "--check"]
    words += ["--set", f"security.secret_file={file}"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 2
    assert f"security.secret_file: others may read {file}" in answer.output
    file.chmod(0o600)
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.usefixtures("as_user")
def test_a_password_for_a_user_is_not_read_of_a_file_that_others_may_read(tmp_path: Path) -> None:
    file = written(tmp_path, 0o644)
    words = ["user", "add", "ann", "--password-file", str(file), "--url", str(tmp_path)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 2 and "chmod 600" in answer.output
