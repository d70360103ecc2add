"""What a node is told: a file, the environment, flags; and what is wrong with it."""

import socket
from pathlib import Path

import msgspec
import pytest

from engine.ports import system_latency
from herdbook.node.checking import SettingsWrong, read_settings, warnings_of
from herdbook.node.reading import KEYS, to_toml
from herdbook.node.settings import NodeSettings, Role

URL = "herdbook://zookeeper-1:2181/prod"


def errors_of(
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> tuple[str, ...]:
    """What is wrong with it."""
    with pytest.raises(SettingsWrong) as raised:
        read_settings(file, environment, flags)
    return raised.value.errors


def written(folder: Path, text: str) -> Path:
    """A file with that text."""
    file = folder / "node.toml"
    file.write_text(text)
    return file


def test_flags_count_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'data = "in-file"\nrack = "/file"\nhost = "file"\n[herd]\nreplica_grace_ms = 1\n',
    )
    environment = {"HERDBOOK_RACK": "/environment", "HERDBOOK_HOST": "environment"}
    found = read_settings(file, environment, {"host": "flag"})
    assert (found.host, found.rack, found.herd.replica_grace_ms) == ("flag", "/environment", 1)


def test_a_variable_names_a_table_and_its_key_and_may_hold_lists_and_numbers(
    tmp_path: Path,
) -> None:
    environment = {
        "HERDBOOK_DATA": str(tmp_path),
        "HERDBOOK_ROLES": "bookie, herd",
        "HERDBOOK_HERD__REPLICA_GRACE_MS": "7",
        "HERDBOOK_ONE_PROCESS": "true",
        "HERDBOOK_BROKER__ON_ALARM": '["page", "the vet"]',
        "HERDBOOK_BROKER__DISCOVER": '{"racks": ["list", "racks"]}',
    }
    found = read_settings(None, environment)
    assert found.roles == (Role.BOOKIE, Role.HERD)
    assert found.herd.replica_grace_ms == 7 and found.one_process
    assert found.broker.on_alarm == ("page", "the vet")
    assert found.broker.discover == {"racks": ("list", "racks")}


def test_proxies_are_addresses_or_networks(tmp_path: Path) -> None:
    environment = {
        "HERDBOOK_DATA": str(tmp_path),
        "HERDBOOK_HTTP__PROXIES": '["10.0.0.1", "fd00::/8"]',
    }
    assert read_settings(None, environment).http.proxies == ("10.0.0.1", "fd00::/8")
    for key in ("http.proxies", "broker.proxies"):
        [error] = errors_of(None, environment, {key: ["10.0.0.1/8"]})
        assert error.startswith(f"{key}: name a proxy by its address")


def test_variables_of_others_that_share_the_prefix_are_left_alone(tmp_path: Path) -> None:
    environment = {
        "HERDBOOK_PORT": "tcp://10.0.0.1:3181",
        "HERDBOOK_SERVICE_HOST": "10.0.0.1",
        "HERDBOOK_URL": "./the-folder-of-this-shell",
        "HERDBOOK_HERD__GRPC": "",
    }
    assert read_settings(None, environment, {"data": str(tmp_path)}).url == ""


def test_all_that_is_wrong_is_told_at_once_each_with_its_place(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'roles = ["bookie", "hird"]\ndta = "x"\nherd = 3\n[broker]\nlease_ms = "soon"\n',
    )
    errors = errors_of(file, {"HERDBOOK_HERD__LISTN": "x"}, {"bookie.metrics": "nowhere"})
    said = "\n".join(errors)
    for each in (
        f"roles: invalid enum value 'hird', in {file}",
        f"dta: nobody knows this key, perhaps data is meant, in {file}",
        "herd is a table: write [herd]",
        "broker.lease_ms: wants int, got str",
        "herd.listn: nobody knows this key, perhaps herd.listen is meant, in HERDBOOK_HERD__LISTN",
        "data: it is missing",
    ):
        assert each in said, each
    # Nobody listens at it in a node without a cluster: what is not used is not checked.
    assert "bookie.metrics" not in said


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"herd.listen": "127.0.0.1:3181"}, "herd.listen: port 3181 is taken already, by bookie"),
        ({"http.listen": "0.0.0.0:7364", "insecure": True}, "http.listen: port 7364 is taken"),
        ({"herd.listen": "127.0.0.1"}, "herd.listen: 127.0.0.1 is not as host:port"),
        ({"herd.listen": "127.0.0.1:0"}, "herd.listen: others have to find it again"),
        ({"broker.grpc": ""}, "broker.grpc: it is missing"),
        ({"herd.listen": "0.0.0.0:7180"}, "herd.listen: whoever reaches 0.0.0.0:7180 could write"),
        ({"broker.listen": "10.0.0.1:1"}, "broker.listen: whoever reaches 10.0.0.1:1 could write"),
        ({"broker.grpc": "10.0.0.1:1"}, "127.0.0.1:7364 is what others would dial"),
        ({"security.secret_file": "nothing"}, "nothing cannot be read: No such file"),
        ({"security.certificate": __file__}, "security.private_key: it is missing"),
        ({"zookeeper.user": "elsa"}, "zookeeper: user and password_file go together"),
        ({"url": "herdbook://zookeeper:2181:1"}, "url: "),
        ({"url": "./folder"}, "url: ./folder is no herdbook://host:port/path"),
        ({"data": "herdbook://zookeeper/x"}, "data: "),
        ({"data": __file__}, "is no folder"),
        ({"bookie.folders": ["a", "./a"]}, "bookie.folders: "),
        ({"roles": ["herd", "herd"]}, "roles: herd is named twice"),
        ({"roles": []}, "roles: none is named"),
        ({"supervisor.restart_pause_ms": 40_000}, "supervisor.restart_pause_ms_max: it is less"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, flags: dict[str, object], error: str) -> None:
    told: dict[str, object] = {"data": str(tmp_path), "url": URL}
    assert read_settings(None, {}, told).url == URL
    errors = errors_of(None, {}, told | flags)
    assert [each for each in errors if error in each], errors


def test_brokers_are_served_to_other_machines_by_users_of_the_cluster_over_tls(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    flags: dict[str, object] = {"data": str(tmp_path / "data"), "url": URL}
    flags |= {"broker.listen": "0.0.0.0:7364", "broker.grpc": "0.0.0.0:7365"}
    flags["security.secret_file"] = str(tmp_path / "key")
    [error] = errors_of(None, {}, flags)
    assert "broker.users, or security.secret_file and broker.certificate" in error
    flags |= {"broker.certificate": str(tmp_path / "key")}
    flags |= {"broker.private_key": str(tmp_path / "key")}
    assert read_settings(None, {}, flags).reached("0.0.0.0:7364", "cow-1:7364") == "cow-1:7364"


@pytest.mark.parametrize(
    ("folders", "error"),
    [
        (["one", "one/two"], "one/two lies in {}/one: "),
        (["data/herd"], "data/herd lies in {}/data/herd: "),
        (["data/.node/x"], "data/.node/x lies in {}/data/.node: "),
        (["audit"], "audit is named twice"),
        (["audit/one"], "audit/one lies in audit.folder: "),
        (["."], "data lies in {}: "),
        (["data/bookie", "data/disk-2"], ""),
        (["two", "twofold"], ""),
    ],
)
def test_a_bookie_has_its_folder_for_itself(tmp_path: Path, folders: list[str], error: str) -> None:
    text = f'data = "data"\nurl = "{URL}"\n[audit]\nfolder = "audit"\n[bookie]\nfolders = {folders}'
    file = written(tmp_path, text)
    if not error:
        assert len(read_settings(file).bookie.folders) == 2
        return
    found = [each for each in errors_of(file) if each.startswith("bookie.folders: ")]
    assert error.format(tmp_path) in "\n".join(found), found


def test_a_disk_that_cannot_be_used_is_a_warning_as_long_as_another_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != shut)
    (tmp_path / "file").touch()
    useless = [str(tmp_path / "file"), str(shut / "bookie")]
    told: dict[str, object] = {"data": str(tmp_path), "url": URL}
    found = read_settings(None, {}, told | {"bookie.folders": [*useless, str(tmp_path / "ok")]})
    warnings = warnings_of(found)
    assert len(warnings) == 2 and all(each.startswith("bookie.folders: ") for each in warnings)
    assert f"{tmp_path / 'file'} is no folder" in warnings[0]
    assert f"nothing can be written into {shut}" in warnings[1]
    errors = errors_of(None, {}, told | {"bookie.folders": useless})
    assert len(errors) == 2 and not warnings_of(NodeSettings(data=str(tmp_path)))


def test_sending_zookeepers_password_unencrypted_is_a_warning(
    tmp_path: Path,
) -> None:
    for name in ("password", "authorities"):
        (tmp_path / name).write_text("moo")
        (tmp_path / name).chmod(0o600)
    told: dict[str, object] = {
        "data": str(tmp_path),
        "url": "herdbook://127.0.0.1:2181,zk1:2181/prod",
        "zookeeper.user": "herdbook",
        "zookeeper.password_file": str(tmp_path / "password"),
    }
    [warning] = warnings_of(read_settings(None, {}, told))
    assert warning.startswith("zookeeper.authorities: ") and "zk1:2181 unencrypted" in warning
    encrypted = told | {"zookeeper.authorities": str(tmp_path / "authorities")}
    assert warnings_of(read_settings(None, {}, encrypted)) == []
    near = told | {"url": "herdbook://127.0.0.1:2181/prod"}
    assert warnings_of(read_settings(None, {}, near)) == []


@pytest.mark.parametrize("wrong", ["moo", "one secret of the cows\n" * 3])
def test_a_shared_secret_that_cannot_be_used_is_told_by_the_check(
    tmp_path: Path, wrong: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(wrong)
    file.chmod(0o600)
    [error] = errors_of(None, {}, {"data": str(tmp_path), "security.secret_file": str(file)})
    assert error.startswith("security.secret_file: ")


def test_a_folder_alone_has_no_role_repair(tmp_path: Path) -> None:
    errors = errors_of(None, {}, {"data": str(tmp_path), "roles": ["repair"]})
    assert errors == ("roles: repair needs a cluster; a folder alone has nothing to copy from",)


def test_paths_begin_in_the_folder_of_the_file_that_says_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    file = written(tmp_path, 'data = "node"\n[security]\nsecret_file = "secret"\n')
    found = read_settings(file)
    assert found.data == str(tmp_path / "node")
    assert found.security.secret_file == str(tmp_path / "secret")


def test_a_file_that_is_empty_or_not_toml_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    flags = {"data": str(tmp_path), "security.secret_file": str(tmp_path / "empty")}
    assert errors_of(None, {}, {**flags}) == (
        f"security.secret_file: {tmp_path / 'empty'} is empty",
    )
    assert "is no TOML" in errors_of(written(tmp_path, "herd = ["))[0]
    assert "cannot be read" in errors_of(tmp_path / "none.toml")[0]


def test_processors_are_asked_by_a_bookie_of_a_cluster_where_the_machine_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "cpu_dma_latency"
    monkeypatch.setattr(system_latency, "DEVICE", device)
    told = {"data": str(tmp_path), "url": URL, "bookie.cpu_latency_us": 0}
    (error,) = errors_of(None, {}, told)
    assert error.startswith("bookie.cpu_latency_us: cannot ask") and str(device) in error
    assert read_settings(None, {}, told | {"roles": ["herd"]}).bookie.cpu_latency_us == 0
    device.touch()
    assert read_settings(None, {}, told).bookie.cpu_latency_us == 0
    (error,) = errors_of(None, {}, told | {"url": ""})
    assert error.startswith("bookie.cpu_latency_us: a node of a folder")
    assert errors_of(None, {}, told | {"bookie.cpu_latency_us": -2})


def test_what_is_printed_is_a_file_that_says_the_same_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of sixteen bytes")
    (tmp_path / "secret").chmod(0o600)
    said = read_settings(
        None,
        {},
        {
            "data": str(tmp_path / 'a "quoted" folder with \x7f, \t and ü'),
            "url": URL,
            "security.secret_file": str(tmp_path / "secret"),
            "broker.discover": {"racks \x7f": ["list", "all"]},
            "roles": "bookie,repair",
        },
    )
    text = to_toml(said)
    assert "sixteen" not in text
    assert read_settings(written(tmp_path, text)) == said


def test_every_key_has_a_value_of_its_own_type_to_begin_with() -> None:
    for name, key in KEYS.items():
        table, _, last = name.rpartition(".")
        value = getattr(getattr(NodeSettings(), table) if table else NodeSettings(), last)
        msgspec.convert(msgspec.to_builtins(value), key.type)
    assert len(KEYS) > 50


def test_where_all_addresses_are_listened_at_the_name_of_the_machine_is_advertised() -> None:
    named = NodeSettings(host="cow-1")
    assert named.reached("0.0.0.0:7180", "") == "cow-1:7180"
    assert named.reached("10.0.0.1:7180", "") == "10.0.0.1:7180"
    assert named.reached("0.0.0.0:7180", "proxy:1") == "proxy:1"
    assert NodeSettings().reached("[::]:7180", "") == f"{socket.gethostname()}:7180"


def test_a_limit_of_few_open_files_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for files, found in ((4_096, 0), (1_024, 1)):
        monkeypatch.setattr("herdbook.node.checking.raise_files_max", lambda files=files: files)
        warnings = warnings_of(NodeSettings(data=str(tmp_path)))
        assert len(warnings) == found
    assert "may have 1024, less than 4096" in warnings[0] and "LimitNOFILE=" in warnings[0]
