"""What lies in deploy/ says what `herdbook serve` takes, and is well formed."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

from herdbook.cli.serve import serve
from herdbook.http.settings import WebSettings
from herdbook.node.checking import read_settings
from herdbook.node.reading import gather
from herdbook.node.settings import NodeSettings, Role, listeners

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "container" / "Dockerfile").read_text()
UNIT = (DEPLOY / "systemd" / "herdbook.service").read_text()
PLACES = ("/etc/herdbook", "/var/lib/herdbook", "/data")


def settings_of(text: str, folder: Path) -> NodeSettings:
    """What a node's file says, its places being folders of the test; nothing is wrong with it."""
    for place in PLACES:
        text = re.sub(rf'"{place}(?=[/"])', f'"{folder}{place}', text)
    for name in re.findall(rf'"({re.escape(str(folder))}/etc/[^"]+)"', text):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("something, so that it is not empty")
        Path(name).chmod(0o600)
    file = folder / "node.toml"
    file.write_text(text)
    return read_settings(file)


def documents() -> dict[str, dict[str, Any]]:
    """What Kubernetes is told, by kind and name."""
    with (DEPLOY / "kubernetes" / "herdbook.yaml").open() as file:
        return {
            f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(file)
        }


def pod() -> tuple[dict[str, Any], dict[str, Any]]:
    """What a node's pod is, and its only container."""
    spec = documents()["StatefulSet/herdbook"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    return spec, container


def compose() -> dict[str, Any]:
    """What the compose file says."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    return found


def options() -> set[str]:
    """The options of `herdbook serve`."""
    alone = typer.Typer()
    alone.command()(serve)
    return {option for each in get_command(alone).params for option in each.opts}


def commands() -> Iterator[list[str]]:
    """The words behind `herdbook`, wherever it is called."""
    yield re.findall(r"^ExecStart=\S+/herdbook (.+)$", UNIT, re.M)[0].split()
    yield json.loads(re.findall(r"^CMD (\[.+\])$", DOCKERFILE, re.M)[0])
    yield json.loads(re.findall(r"^  CMD (\[.+\])$", DOCKERFILE, re.M)[0])[1:]
    yield pod()[1]["args"]


def ports_of(settings: NodeSettings) -> set[int]:
    """Where others reach a node."""
    found = [each.address.rpartition(":") for each in listeners(settings)]
    return {int(port) for host, _, port in found if not host.startswith("127.")}


def test_each_command_is_serve_with_options_that_it_has() -> None:
    for words in commands():
        assert words[0] == "serve", words
        assert {word for word in words if word.startswith("-")} <= options(), words


def test_the_example_of_a_file_is_one_that_a_node_takes(tmp_path: Path) -> None:
    settings = settings_of((DEPLOY / "node.toml").read_text(), tmp_path)
    assert settings.clustered and settings.security.authorities
    assert ports_of(settings) == {3181, 7180, 7364, 7365, 7380}


def test_a_pod_opens_the_ports_at_which_its_node_listens(tmp_path: Path) -> None:
    told = documents()["ConfigMap/herdbook"]["data"]["node.toml"]
    _, container = pod()
    opened = {each["containerPort"] for each in container["ports"]}
    assert ports_of(settings_of(told, tmp_path)) == opened
    names = {each["name"] for each in container["ports"]}
    for service in ("Service/herdbook-nodes", "Service/herdbook"):
        for port in documents()[service]["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in opened | names, service


def test_the_service_of_the_console_keeps_a_browser_at_the_node_that_knows_its_session() -> None:
    service = documents()["Service/herdbook"]["spec"]
    assert service.get("sessionAffinity") == "ClientIP"
    kept_s = service["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
    assert kept_s * 1_000 >= WebSettings().session_age_ms


def test_every_variable_is_a_key_of_a_node() -> None:
    given = [
        {each["name"]: each.get("value", "x") for each in pod()[1]["env"]},
        compose()["x-node"]["environment"],
        dict(re.findall(r"(HERDBOOK_\w+)=(\S+)", DOCKERFILE)),
    ]
    for variables in given:
        ours = {name: str(text) for name, text in variables.items() if "HERDBOOK" in name}
        settings, errors = gather(None, ours, {})
        assert ours and not errors and settings != NodeSettings()


def test_a_pod_is_found_probed_and_ended_as_a_node_wants_it() -> None:
    stateful = documents()["StatefulSet/herdbook"]["spec"]
    spec, container = pod()
    label = {"app.kubernetes.io/name": "herdbook"}
    assert stateful["template"]["metadata"]["labels"] == label
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        assert documents()[f"{kind}/herdbook"]["spec"]["selector"]["matchLabels"] == label
    assert f"Service/{stateful['serviceName']}" in documents()
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    assert {probe["path"] for probe in probes.values()} == {"/health/live"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert spec["terminationGracePeriodSeconds"] * 1_000 > NodeSettings().supervisor.stop_timeout_ms
    assert spec["enableServiceLinks"] is False and spec["securityContext"]["runAsNonRoot"]


def test_a_pod_mounts_what_it_names_and_secrets_as_files() -> None:
    spec, container = pod()
    volumes = {each["name"] for each in spec["volumes"]}
    claims = documents()["StatefulSet/herdbook"]["spec"]["volumeClaimTemplates"]
    volumes |= {each["metadata"]["name"] for each in claims}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    assert not [each for each in container["env"] if "secretKeyRef" in str(each)]


def test_the_compose_file_has_three_nodes_that_listen_where_the_image_opens_ports() -> None:
    services = compose()["services"]
    nodes = {name: each for name, each in services.items() if name.startswith("node-")}
    assert sorted(nodes) == ["node-1", "node-2", "node-3"]
    environment = {name: str(text) for name, text in nodes["node-1"]["environment"].items()}
    settings, errors = gather(None, environment, {"data": "/data"})
    exposed = {int(port) for port in re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.M)[0].split()}
    assert not errors and ports_of(settings) == exposed
    assert set(settings.roles) == {Role.BOOKIE, Role.HERD, Role.BROKER, Role.HTTP}
    volumes = {each["volumes"][0].partition(":")[0] for each in services.values()}
    assert volumes == set(compose()["volumes"])


def test_the_image_is_pinned_runs_as_no_root_and_takes_signals_itself() -> None:
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    words = [step[0] for step in steps]
    assert words[0] == "FROM" and not {"ADD", "MAINTAINER"} & set(words)
    for name, rest in steps:
        if name == "FROM":
            assert re.match(r"\S+:\d[\w.-]+( AS \w+)?$", rest), rest
        if name in ("CMD", "ENTRYPOINT"):
            assert isinstance(json.loads(rest), list)
    [user] = [rest for name, rest in steps if name == "USER"]
    assert not user.startswith(("0", "root"))
    assert words.index("USER") > words.index("RUN")


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    assert "Type=notify" in UNIT and "KillMode=mixed" in UNIT
    seconds = int(re.findall(r"^TimeoutStopSec=(\d+)s$", UNIT, re.M)[0])
    assert seconds * 1_000 > NodeSettings().supervisor.stop_timeout_ms
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        # Where there is no systemd its own rules are not to be had; ours above are.
        return
    # Of this machine, which has neither the program nor its user.
    there = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", UNIT, flags=re.M)
    there = re.sub(r"^(User|Group)=.*$", r"\1=root", there, flags=re.M)
    unit = tmp_path / "herdbook.service"
    unit.write_text(there)
    told = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")


def test_the_unit_lets_a_node_write_where_its_pages_keep_bookies_and_the_audit() -> None:
    docs = DEPLOY.parent / "docs"
    [folders] = re.findall(r"^folders = (\[.+\])$", (docs / "node.md").read_text(), re.M)
    [told] = re.findall(r"^# ReadWritePaths=(.+)$", UNIT, re.M)
    assert told.split() == json.loads(folders)
    [audit] = re.findall(r'^folder = "/var/log/(.+)"$', (docs / "security.md").read_text(), re.M)
    assert f"\nLogsDirectory={audit}\n" in UNIT and "\nProtectSystem=strict\n" in UNIT
    assert "ReadWritePaths=" in (DEPLOY / "README.md").read_text()


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_the_paths_that_are_probed_are_served_without_a_login(path: str) -> None:
    from herdbook.http import health

    class Door:
        def guarded(self, needs: object, handler: Any) -> Any:
            return handler

        class gate:
            class settings:
                open_metrics = False

    places: Any = health.places_of(None, None, Door())  # type: ignore[arg-type]
    assert path in {place.path for place in places}
