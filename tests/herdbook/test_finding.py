"""The one rule of finding a store, step by step."""

import os
from pathlib import Path

import pytest

from engine import cluster
from engine.errors import InvalidRequest
from herdbook.cli.store import warn_of_clear_password
from herdbook.finding import (
    Configuration,
    StoreNotFound,
    check_store,
    configuration_file,
    find,
    open_store,
    read_configuration,
)
from tests.engine.transport.certificates import Authority

CLUSTER = "herdbook://zk1:2181/prod"


def configured(folder: Path, text: str) -> dict[str, str]:
    """An environment whose configuration file says this."""
    file = folder / "herdbook" / "config.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_the_argument_comes_before_the_environment_and_that_before_the_file(
    tmp_path: Path,
) -> None:
    environment = configured(tmp_path, f'url = "{CLUSTER}-file"')
    assert find(None, environment) == f"{CLUSTER}-file"
    environment["HERDBOOK_URL"] = f"{CLUSTER}-environment"
    assert find(None, environment) == f"{CLUSTER}-environment"
    assert find(str(tmp_path), environment) == str(tmp_path)


def test_without_any_of_them_the_error_names_all_three(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound) as failure:
        find(None, {"XDG_CONFIG_HOME": str(tmp_path)})
    told = str(failure.value)
    assert "--url" in told and "HERDBOOK_URL" in told
    assert str(tmp_path / "herdbook" / "config.toml") in told and "\n" not in told


def test_the_file_is_found_below_the_home_folder_unless_another_is_named() -> None:
    home = Path.home() / ".config" / "herdbook" / "config.toml"
    assert configuration_file({}) == home
    assert configuration_file({"XDG_CONFIG_HOME": ""}) == home
    assert configuration_file({"HERDBOOK_CONFIG": "x/y.toml"}) == Path("x/y.toml")


def test_a_folder_in_the_file_is_relative_to_the_file(tmp_path: Path) -> None:
    environment = configured(tmp_path, 'url = "data"')
    with pytest.raises(StoreNotFound, match="data is no folder"):
        find(None, environment)
    (tmp_path / "herdbook" / "data").mkdir()
    assert find(None, environment) == str(tmp_path / "herdbook" / "data")


def test_what_is_neither_folder_nor_cluster_is_refused(tmp_path: Path) -> None:
    for argument in ("s3://bucket", str(tmp_path / "nothing")):
        with pytest.raises(StoreNotFound, match="folder"):
            find(argument, {})
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "text", ["url = ", 'ulr = "x"', "url = 7", '[security]\nsecret = "x"', 'wire = "pigeon"']
)
def test_a_file_that_says_what_nobody_knows_is_an_error_that_names_it(
    tmp_path: Path, text: str
) -> None:
    environment = configured(tmp_path, text)
    with pytest.raises(InvalidRequest, match=r"config\.toml"):
        find(None, environment)


def test_secrets_and_certificates_are_named_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"sixteen bytes or more\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "password").write_bytes(b"moo")
    (tmp_path / "password").chmod(0o600)
    file = tmp_path / "c.toml"
    file.write_text(
        'wire = "grpc"\n[security]\nsecret_file = "secret"\nauthorities = "/etc/ca.pem"\n'
        '[zookeeper]\nuser = "herd"\npassword_file = "password"\n'
    )
    told = read_configuration(file)
    security = told.make_security()
    assert told.wire == "grpc" and security.secret == b"sixteen bytes or more"
    assert security.authorities == Path("/etc/ca.pem") and security.certificate is None
    zookeeper = told.make_zookeeper()
    assert (zookeeper.user, zookeeper.password) == ("herd", "moo")
    (tmp_path / "secret").unlink()
    with pytest.raises(InvalidRequest, match="secret cannot be read"):
        told.make_security()


def test_zookeeper_is_reached_over_tls_where_its_authorities_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = Authority(tmp_path, "ca").sign("client")
    (tmp_path / "password").write_text("moo")
    (tmp_path / "password").chmod(0o600)
    file = tmp_path / "c.toml"
    clear = '[zookeeper]\nuser = "herd"\npassword_file = "password"\n'
    file.write_text(
        f'{clear}authorities = "ca.pem"\ncertificate = "client.crt"\nprivate_key = "client.key"\n'
    )
    tls = read_configuration(file).make_zookeeper().tls
    assert tls.encrypts and tls.certificate == signed.certificate and tls.source is not None
    assert tls.client_context() is not None
    monkeypatch.setenv("HERDBOOK_CONFIG", str(file))
    warn_of_clear_password("herdbook://zk1:2281/prod")
    assert not capsys.readouterr().err
    file.write_text(clear)
    warn_of_clear_password("herdbook://zk1:2181/prod")
    warn_of_clear_password("herdbook://127.0.0.1:2181/prod")
    warn_of_clear_password(str(tmp_path))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "zk1:2181 unencrypted" in told[0]


def test_without_a_file_nothing_is_said(tmp_path: Path) -> None:
    assert read_configuration(tmp_path / "none.toml") == Configuration()
    assert Configuration().make_security().on is False


async def test_a_folder_is_opened_as_a_client(tmp_path: Path) -> None:
    async with cluster.open(tmp_path):
        pass
    async with open_store(str(tmp_path)) as client:
        writer = await client.create_ledger()
        assert await writer.append(b"moo") == 0


async def test_a_configuration_file_that_was_named_and_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"HERDBOOK_CONFIG": str(tmp_path / "no.toml")}
    with pytest.raises(InvalidRequest, match=r"no\.toml is not there, and HERDBOOK_CONFIG"):
        find(None, named)
    monkeypatch.setenv("HERDBOOK_CONFIG", named["HERDBOOK_CONFIG"])
    with pytest.raises(InvalidRequest, match="HERDBOOK_CONFIG"):
        async with open_store(str(tmp_path)):
            raise AssertionError("opened")


@pytest.mark.parametrize("content", ["", "letters", "identity"])
async def test_a_folder_without_a_store_is_an_error_and_stays_as_it_is(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HERDBOOK_CONFIG", raising=False)
    if content:
        (tmp_path / content).write_text("moo")
    meant = "one bookie's folder" if content == "identity" else "holds no store"
    with pytest.raises(StoreNotFound, match=meant):
        async with open_store(str(tmp_path)):
            raise AssertionError("opened")
    assert os.listdir(tmp_path) == ([content] if content else [])


def test_a_folder_that_is_to_be_made_is_made_whoever_named_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('url = "data"\n')
    for argument, environment in (
        (str(tmp_path / "argument"), {}),
        (None, {"HERDBOOK_URL": str(tmp_path / "variable")}),
        (None, {"HERDBOOK_CONFIG": str(file)}),
    ):
        made = find(argument, environment, create=True)
        assert Path(made).is_dir()


def test_a_file_is_called_a_file_whether_a_folder_is_to_be_made_or_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for create in (False, True):
        with pytest.raises(StoreNotFound, match="file is a file: name a folder"):
            find(str(tmp_path / "file"), {}, create=create)


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotFound, match="cannot be made: Not a directory: name a folder where"):
        find(str(tmp_path / "file" / "data"), {}, create=True)


def test_a_folder_that_this_user_may_not_read_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    for look in (lambda: find(str(tmp_path), {}), lambda: check_store(tmp_path)):
        with pytest.raises(StoreNotFound, match="cannot be read: Permission denied: it is another"):
            look()


def test_who_names_no_store_is_told_the_option_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match=r"\(--url in a shell\)"):
        find(None, {"XDG_CONFIG_HOME": str(tmp_path)})
