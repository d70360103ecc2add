"""The same commands over a real cluster: ZooKeeper, and a process that runs four bookies."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import engine
from engine.connecting import connect
from engine.errors import AccessRefused
from herdbook.cli.main import app
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

START_TIMEOUT_S = 30


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def objects(result: Result) -> list[dict[str, Any]]:
    """What a command with --json printed; it must have worked."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def serving(folder: Path, cluster: str, *options: str) -> Iterator[str]:
    """A process with four bookies; gives the line that it says when they serve."""
    command = [sys.executable, "-m", "herdbook", "bookie", "--zookeeper", cluster]
    command += ["--listen", "127.0.0.1:0", *options]
    for number in range(4):
        command += ["--data", str(folder / f"disk-{number}")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HERDBOOK_URL": ""}
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(START_TIMEOUT_S)
        process.stdout.close()
    assert status == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The url of a cluster, and its bookies' ids."""
    address = shared_zookeeper().hosts + fresh_chroot()
    folder = tmp_path_factory.mktemp("cluster")
    grpc = ("--grpc", "127.0.0.1:0", "--rack", "r1", "--host", "here")
    with serving(folder, address, *grpc) as line:
        yield f"herdbook://{address}", line.partition(" at ")[0].split()[1:]


async def write(url: str, entries: int, security: engine.Security | None = None) -> int:
    """A closed ledger."""
    async with connect(url, security=security) as client:
        writer = await client.create_ledger()
        await writer.append_many([b"moo"] * entries)
        await writer.close()
        return writer.ledger_id


def test_ledgers_of_a_cluster_are_listed_and_read(cluster: tuple[str, list[str]]) -> None:
    url, bookies = cluster
    ledger_id = asyncio.run(write(url, 300))
    shown = objects(call("ledger", "show", str(ledger_id), "--url", url, "--json"))[0]
    assert (shown["state"], shown["last_entry"], shown["quorums"]) == ("CLOSED", 299, [3, 3, 2])
    ensemble = shown["fragments"][0][1:]
    assert set(ensemble) < set(bookies)
    assert shown["badly_placed"] == [
        {"domain": "host", "name": "here", "bookies": ensemble},
        {"domain": "rack", "name": "r1", "bookies": ensemble},
    ]
    read = call("ledger", "read", str(ledger_id), "--url", url)
    assert read.stdout == "moo" * 300
    assert ledger_id in [
        each["ledger"] for each in objects(call("ledger", "ls", "--url", url, "--json"))
    ]


def test_bookies_of_a_cluster_say_where_they_are(cluster: tuple[str, list[str]]) -> None:
    url, bookies = cluster
    listed = objects(call("bookie", "ls", "--url", url, "--json"))
    assert {each["bookie"] for each in listed} == set(bookies)
    assert {(each["host"], each["rack"]) for each in listed} == {("here", "r1")}
    people = call("bookie", "ls", "--url", url).stdout
    checked_by_people = call("bookie", "check", "--url", url).stdout
    for each in bookies:
        assert f"here {each[:8]} " in people and f"here {each[:8]} " in checked_by_people
    assert all(each["address"].startswith("tcp:127.0.0.1:") for each in listed)
    assert all(each["grpc"].startswith("127.0.0.1:") for each in listed)
    checked = objects(call("bookie", "check", "--url", url, "--json"))
    assert [each["problem"] for each in checked] == [""] * 4


def test_both_wires_reach_the_same_bookies(cluster: tuple[str, list[str]]) -> None:
    url, _ = cluster

    async def across() -> int:
        async with connect(url, wire="grpc") as client:
            writer = await client.create_ledger()
            await writer.append_many([b"moo"] * 10)
            await writer.close()
        async with connect(url, wire="framed") as client:
            reader = await client.open_ledger(writer.ledger_id)
            return len([entry async for entry in reader.read(0, 9)])

    assert asyncio.run(across()) == 10


def test_a_cluster_is_scrubbed_and_repair_is_switched(cluster: tuple[str, list[str]]) -> None:
    url, _ = cluster
    ledger_id = asyncio.run(write(url, 10))
    assert objects(call("repair", "off", "--url", url, "--json")) == [{"on": False}]
    status = objects(call("repair", "status", "--url", url, "--json"))[0]
    assert status["disabled"] == "by hand" and status["queued"] == 0
    assert objects(call("repair", "on", "--url", url, "--json")) == [{"on": True}]
    mark = objects(call("repair", "scrub", str(ledger_id), "--url", url, "--json"))[0]
    assert (mark["ledgers"], mark["entries"], mark["faults"], mark["silent"]) == (1, 10, 0, 0)


def test_a_bookie_of_a_cluster_is_emptied_by_the_others(cluster: tuple[str, list[str]]) -> None:
    url, bookies = cluster
    ledger_ids = [asyncio.run(write(url, 10)) for _ in range(4)]
    leaving = bookies[0]
    done = objects(call("bookie", "decommission", leaving, "--url", url, "--json"))[0]
    assert done["left"] == 0
    assert objects(call("ledger", "ls", "--bookie", leaving, "--url", url, "--json")) == []
    for _ in range(5):
        ledger_ids.append(asyncio.run(write(url, 1)))
    assert objects(call("ledger", "ls", "--bookie", leaving, "--url", url, "--json")) == []
    scrubbed = call("repair", "scrub", *map(str, ledger_ids), "--url", url, "--json")
    assert objects(scrubbed)[0]["faults"] == 0
    assert call("bookie", "decommission", leaving, "--cancel", "--url", url).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("ledger", "ls"),
        ("sql", "-c", "SELECT 1"),
        ("blob", "ls"),
        ("task", "ls"),
        ("herd", "nodes"),
        ("store", "check"),
        ("worker", "--tasks", "farm"),
    ],
    ids=lambda words: words[0],
)
def test_a_path_without_a_cluster_is_one_line_and_a_status_of_its_own(
    cluster: tuple[str, list[str]], words: tuple[str, ...]
) -> None:
    url, _ = cluster
    answer = call(*words, "--url", url + "-not")
    assert answer.exit_code == 2 and answer.stdout == ""
    [line] = answer.stderr.splitlines()
    assert f": no cluster at {url}-not: check the path" in line and "`herdbook serve`" in line


def test_a_bookie_process_shows_its_metrics(tmp_path: Path) -> None:
    address = shared_zookeeper().hosts + fresh_chroot()
    with serving(tmp_path, address, "--metrics", "127.0.0.1:0") as line:
        asyncio.run(write(f"herdbook://{address}", 100))
        page = line.partition(", metrics at ")[2].strip()
        with urllib.request.urlopen(page, timeout=10) as answer:
            text = answer.read().decode()
    written = [
        float(each.rpartition(" ")[2])
        for each in text.splitlines()
        if each.startswith("herdbook_bookie_batches_total")
    ]
    assert len(written) == 4 and sum(count >= 1 for count in written) >= 3
    assert "herdbook_loop_lag_seconds_count" in text
    assert "herdbook_repair_auditor 1.0" in text
    assert text.count("\nherdbook_bookie_queue_bytes{") == 4
    assert text.count("\nherdbook_bookie_writable{") == 4
    document = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    alerts = set(re.findall(r"`(?:sum\()?(herdbook_[a-z_]+)", document))
    # Nodes of tablespaces and brokers show these.
    alerts -= {"herdbook_herd_tablespaces_under_replicated", "herdbook_herd_clock_ahead_seconds"}
    alerts -= {"herdbook_broker_clock_jumps_total"}
    served = set(re.findall(r"^# TYPE (herdbook_[a-z_]+)", text, re.MULTILINE))
    # A refusal has no number before the first one.
    assert len(alerts) > 6 and alerts - {"herdbook_bookie_refused_total"} <= served


def test_a_secret_in_the_configuration_file_opens_a_guarded_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = shared_zookeeper().hosts + fresh_chroot()
    (tmp_path / "secret").write_text("known to this cluster alone\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "other").write_text("known to another one, perhaps\n")
    (tmp_path / "other").chmod(0o600)
    guarded = ("--secret-file", str(tmp_path / "secret"), "--grpc", "127.0.0.1:0")
    with serving(tmp_path, address, *guarded):
        security = engine.Security((tmp_path / "secret").read_bytes().strip())
        ledger_id = asyncio.run(write(f"herdbook://{address}", 3, security))
        for wire in ("framed", "grpc"):
            for name, works in (("secret", True), ("other", False), ("", False)):
                file = tmp_path / f"{wire}-{name}.toml"
                file.write_text(
                    f'url = "herdbook://{address}"\nwire = "{wire}"\n'
                    + (f'[security]\nsecret_file = "{name}"\n' if name else "")
                )
                monkeypatch.setenv("HERDBOOK_CONFIG", str(file))
                monkeypatch.delenv("HERDBOOK_URL", raising=False)
                checked = call("bookie", "check", "--json")
                problems = [json.loads(line)["problem"] for line in checked.stdout.splitlines()]
                assert len(problems) == 4
                assert all((problem == "") is works for problem in problems), problems
                assert checked.exit_code == (0 if works else 1)
                read = call("ledger", "read", str(ledger_id))
                scrubbed = call("repair", "scrub", str(ledger_id))
                if works:
                    assert read.stdout == "moomoomoo" and scrubbed.exit_code == 0
                else:
                    assert "AccessRefused: " in read.stderr and "secret" in read.stderr
                    assert scrubbed.exit_code == 1 and "AccessRefused: " in scrubbed.stderr
        with pytest.raises(AccessRefused, match="secret"):
            asyncio.run(write(f"herdbook://{address}", 3))
