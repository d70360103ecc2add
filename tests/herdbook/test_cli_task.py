"""`herdbook task`: what people and scripts get, and how it ends."""

import json
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

import herdbook
from herdbook.cli.task import app
from herdbook.task_api import SERVER_FILE
from tests.engine.transport.certificates import Authority

# Made once: it costs as much as most commands.
COMMAND: Any = get_command(app)

LONELY = "no worker is connected"

USERS = """
[users.elsa]
password = "moo"
admin = true
[users.acme]
password = "ox"
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder whose broker another process serves, to who is in a list of users."""
    path = tmp_path_factory.mktemp("store")
    users = path / "users.toml"
    users.write_text(USERS)
    users.chmod(0o600)
    folder = path / "data"
    signed = Authority(path, "authority").sign("broker")
    (path / "config.toml").write_text("[security]\nauthorities = 'authority.pem'")
    assert call("submit", "first", "--create", "--url", str(folder)).exit_code == 0
    command = [sys.executable, "-m", "herdbook", "task", "serve", "--listen", "127.0.0.1:0"]
    command += ["--users", str(users), "--url", str(folder)]
    command += ["--certificate", str(signed.certificate)]
    command += ["--private-key", str(signed.private_key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            line = process.stdout.readline()
            assert line.startswith("the broker serves at https://127.0.0.1:"), line
            yield folder, line.rpartition(" ")[2].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=60)
    assert (status, (folder / SERVER_FILE).exists()) == (0, False)


@pytest.fixture
def store(served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store that the environment names."""
    monkeypatch.setenv("HERDBOOK_URL", str(served[0]))
    return served[0]


def call(*arguments: str, typed: bytes | None = None) -> Result:
    answer = CliRunner().invoke(COMMAND, list(arguments), input=typed)
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def said(*arguments: str, typed: bytes | None = None) -> str:
    """Standard output of a command that works and says nothing else."""
    answer = call(*arguments, typed=typed)
    assert answer.exit_code == 0, answer.output
    # Nothing of these tests has a worker, and each submit says so once.
    assert answer.stderr == "" or (LONELY in answer.stderr and answer.stderr.count("\n") == 1)
    return answer.stdout


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(*arguments, "--json").splitlines()]


def failed(*arguments: str, status: int = 1) -> str:
    answer = call(*arguments)
    assert answer.exit_code == status, answer.output
    return answer.stderr


def test_a_task_is_submitted_shown_listed_cancelled_and_begun_anew(store: Path) -> None:
    task_id = said("submit", "resize", "path=elsa.jpg", "width=640", "--tenant", "resi").strip()
    [task] = rows("show", task_id)
    assert json.loads(task["payload"]) == {"path": "elsa.jpg", "width": 640}
    assert (task["type"], task["tenant"], task["status"]) == ("resize", "resi", "waiting")
    assert [each["id"] for each in rows("ls", "--tenant", "resi")] == [int(task_id)]
    shown = said("show", task_id)
    assert "elsa.jpg" in shown and "submitted" in shown and LONELY in shown
    assert LONELY in call("submit", "resize", "--tenant", "lonely").stderr
    assert said("cancel", task_id) == f"task {task_id}: done\n"
    assert said("cancel", task_id) == f"task {task_id}: repeated\n"
    assert rows("retry", task_id) == [{"id": int(task_id), "outcome": "done"}]
    assert f"task {task_id} is waiting and cannot be deleted" in failed("delete", task_id)
    said("cancel", task_id)
    assert said("delete", task_id) == f"task {task_id}: done\n"
    assert f"there is no task {task_id}" in failed("show", task_id)
    assert "there is no task 999" in failed("cancel", "999")
    assert "there is no task 999" in failed("show", "999")


def test_a_payload_is_a_text_a_file_or_what_is_typed(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00")
    [made] = rows("submit", "t", "--payload-file", str(file))
    assert rows("show", str(made["id"]))[0]["payload_base64"] == "/wA="
    typed = said("submit", "t", "--payload-file", "-", typed=b"moo").strip()
    assert rows("show", typed)[0]["payload"] == "moo"
    assert "exclude each other" in failed("submit", "t", "a=1", "--payload", "x", status=2)
    assert "name=value" in failed("submit", "t", "width", status=2)
    assert "begins like JSON" in failed("submit", "t", "--payload", '{"cow": elsa}', status=2)
    said("submit", "t", "--payload", ' {"cow": "elsa"}')


def test_what_is_refused_is_one_line_and_status_one(store: Path) -> None:
    said("submit", "t", "--slot", "nightly")
    told = failed("submit", "t", "--slot", "nightly")
    assert told.startswith("SlotBusy: ") and told.count("\n") == 1
    assert "UnknownParent" in failed("submit", "t", "--after", "99999")
    assert "nightly" in [held["slot"] for held in rows("slots")] and "nightly" in said("slots")


def test_waiting_ends_with_the_time_that_was_given(store: Path) -> None:
    answer = call("submit", "t", "--wait-ms", "1", "--json")
    assert "the wait of 1 ms is over; task " in answer.stderr
    assert answer.exit_code == 1 and json.loads(answer.stdout)["status"] == "waiting"


def test_settings_are_set_listed_and_taken_away(store: Path) -> None:
    assert said("set", "resource", "db", "3") == "resource db is set\n"
    assert said("set", "resource", "db", "3") == "resource db is set already\n"
    said("set", "rate", "tenant:acme", '{"per_second": 2}')
    [limit] = rows("set", "resource")
    assert (limit["name"], limit["value"]) == ("db", {"limit": 3})
    assert "tenant:acme" in said("set")
    [shown] = [each for each in rows("resources") if each["name"] == "db"]
    assert (shown["limit"], shown["running"]) == (3, 0)
    assert "in use" in said("resources") and "running" not in said("resources")
    assert said("set", "rate", "tenant:acme", "--remove") == "rate tenant:acme is taken away\n"
    assert "InvalidSetting" in failed("set", "resource", "db", '{"limit": -1}')
    assert "no JSON" in failed("set", "resource", "db", "{", status=2)
    assert "VALUE" in failed("set", "resource", "db", status=2)
    assert """as '{"weight": 2}'""" in failed("set", "tenant", "acme", "3", status=2)
    for kind, name in (("tenant", "a"), ("worker", "a"), ("mapping", "a"), ("rate", "type:a")):
        example = failed("set", kind, name, "3", status=2).partition("as '")[2].partition("'")[0]
        assert said("set", kind, name, example) == f"{kind} {name} is set\n"


def test_pauses_and_schedules_come_and_go(store: Path) -> None:
    assert said("pause", "type:resize", "--reason", "bad") == "type:resize is paused\n"
    assert said("resume", "type:resize") == "type:resize goes on\n"
    assert "SCOPE" in failed("pause", "resize", status=2)
    said("schedule", "nightly", "sweep", "--cron", "5 4 * * *", "--zone", "Europe/Rome")
    said("pause", "schedule:nightly")
    [shown] = rows("schedules")
    assert (shown["name"], shown["paused"], shown["zone"]) == ("nightly", True, "Europe/Rome")
    said("resume", "schedule:nightly")
    said("schedule", "nightly", "--remove")
    said("schedule", "often", "sweep", "rooms=3", "by=elsa", "--every-ms", "10")
    while not (fired := rows("schedules")[0]["last_task"]):
        pass
    said("schedule", "often", "--remove")
    assert json.loads(rows("show", str(fired))[0]["payload"]) == {"rooms": 3, "by": "elsa"}
    both = ("schedule", "often", "sweep", "rooms=3", "--payload", "x", "--every-ms", "10")
    assert "exclude each other" in failed(*both, status=2)
    for when in ((), ("--every-ms", "10", "--cron", "* * * * *")):
        told = failed("schedule", "often", "sweep", *when, status=2)
        assert "--cron or --every-ms, one of the two" in told
    assert rows("schedules") == rows("workers") == rows("dead") == []


def test_a_server_is_for_its_users_and_tells_the_owner_of_its_folder(
    served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = served
    assert "CERTIFICATE_VERIFY_FAILED" in failed("ls", "--broker", url)
    monkeypatch.setenv("HERDBOOK_CONFIG", str(folder.parent / "config.toml"))
    context = ssl.create_default_context(cafile=folder.parent / "authority.pem")
    assert (folder / SERVER_FILE).stat().st_mode & 0o777 == 0o600
    assert "log in" in failed("ls", "--broker", url)
    named = url.replace("//", "//acme:ox@")
    [made] = rows("submit", "t", "--broker", named)
    [task] = rows("show", str(made["id"]), "--broker", named)
    assert task["tenant"] == "acme"
    assert "AccessDenied" in failed("set", "--broker", named)
    http = httpx.Client(base_url=url, verify=context, auth=("elsa", "moo"))
    assert "herdbook_broker_tasks" in http.get("/metrics").text
    assert http.get("/healthz", auth=None).json()["mode"] == "leader"
    chunks = (part for part in (b'{"action":"submit', b'Task","tasktype":"t"}'))
    told = http.post("/majordodo", content=chunks).json()
    assert told["ok"] is True and told["taskId"]
    http.close()


def test_a_second_server_of_a_folder_fails_and_names_the_first(served: tuple[Path, str]) -> None:
    folder, url = served
    for listen in ("127.0.0.1:0", url.rpartition("/")[2]):
        told = failed("serve", "--listen", listen, "--url", str(folder))
        assert f"are already served at {url}" in told and "try again" not in told


class Wrong(socketserver.StreamRequestHandler):
    """Speaks something else, as a port of gRPC does."""

    def handle(self) -> None:
        self.request.recv(1024)
        self.wfile.write(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00")


def test_a_look_at_what_is_no_broker_is_no_change_of_unknown_outcome() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Wrong) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        told = failed("ls", "--broker", address)
        assert told.startswith("BrokerUnavailable") and "does not answer as a broker" in told
        assert failed("submit", "t", "--broker", address).startswith("OutcomeUnknown")
        server.shutdown()


def test_without_a_server_a_command_runs_the_broker_itself(tmp_path: Path) -> None:
    url = ("--url", str(tmp_path / "data"))
    said("submit", "t", "--create", *url)
    # What a server left that crashed leads nobody astray.
    (tmp_path / "data" / SERVER_FILE).write_bytes(b'{"url":"http://127.0.0.1:1"}')
    assert [each["type"] for each in rows("ls", *url)] == ["t"]
    with herdbook.open(tmp_path / "data") as book:
        handle = book.tasks.submit("u")
        assert handle.get().id == 2
        # It is reached where it runs.
        assert [each["type"] for each in rows("ls", *url)] == ["t", "u"]
        assert said("submit", "v", *url) == "3\n"
        assert book.tasks.get(3).type == "v"


def test_a_list_fits_a_narrow_screen(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number in range(3):
        said("submit", f"pictures.shrink.{number}", "--tenant", "narrow", "--slot", f"s{number}")
    lines = said("ls", "--tenant", "narrow").splitlines()
    assert len(lines) == 4 + 3 and all(len(line) <= 80 for line in lines)
    assert all("waiting" in line and "narrow" in line for line in lines[3:6])


def test_nobody_serves_all_the_world_without_saying_so(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    told = failed("serve", "--listen", "0.0.0.0:0", "--url", str(folder))
    assert "--insecure" in told
    told = failed("serve", "--grpc", "0.0.0.0:7365", "--url", str(folder))
    assert "a secret" in told
    wrong = tmp_path / "users"
    wrong.write_text("[users.elsa]\npasword = 'x'")
    wrong.chmod(0o600)
    assert "list of users" in failed("serve", "--users", str(wrong), "--url", str(folder))


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    told = failed("ls", "--url", str(tmp_path / "nowhere"), status=2)
    assert told.startswith("StoreNotFound")
    assert "nobody answers" in failed("ls", "--broker", "127.0.0.1:1")


def test_the_help_of_submit_says_that_it_knows_nothing_of_a_functions_decorator() -> None:
    told = " ".join(call("submit", "--help").stdout.split())
    assert "@task(attempts_max=3), counts where a program submits the function itself" in told
    assert "--attempts-max" in told and "How often it may be begun" in told


def test_the_help_says_that_what_schedules_submit_passes_the_quota() -> None:
    told = " ".join(call("schedule", "--help").stdout.split())
    assert "counts for its tenant's quota and is never refused by it" in told
