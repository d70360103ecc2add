"""The benchmarks' own arithmetic: a wrong limit would flatter every number."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import disk_limit
from benchmarks.__main__ import app
from benchmarks.result import Result


def test_a_result_is_one_json_object_with_the_promised_keys() -> None:
    text = Result("ledger", "append-e1-many", 150.0, "adds/s", 600.0).as_json()
    assert "\n" not in text
    assert json.loads(text) == {
        "subject": "ledger",
        "scenario": "append-e1-many",
        "value": 150.0,
        "unit": "adds/s",
        "limit": 600.0,
        "ratio_limit": 0.25,
    }


def test_a_result_without_a_limit_has_no_ratio() -> None:
    assert json.loads(Result("ledger", "memory", 1.5, "MiB", None).as_json())["ratio_limit"] is None


def test_no_more_bytes_are_synced_at_once_than_the_callers_have_under_way() -> None:
    for in_flight in (1024, 100_000, 300_000, 4_000 * 1024, 10**9):
        sizes = disk_limit.sync_sizes(in_flight)
        assert max(sizes) <= in_flight and max(sizes) <= disk_limit.BATCH_BYTES_MAX
        assert sizes == sorted(set(sizes))


def test_the_limit_is_positive_and_leaves_no_file(tmp_path: Path) -> None:
    assert disk_limit.append_rate(tmp_path, 2, 2048, 0.01) > 0
    assert disk_limit.read_rate(tmp_path, 1) > 0
    times = disk_limit.append_times(tmp_path, 2, 0.01)
    assert 0 < times.p50_ms <= times.p99_ms
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    answer = CliRunner().invoke(app, ["ledger", "--only", "nonsense"])
    assert answer.exit_code == 2
    assert "append-e3-batch" in answer.output


@pytest.mark.parametrize("scenario", ["append-e3-batch", "append-e3-one-busy", "tail-latency"])
def test_a_quick_scenario_prints_json_and_nothing_else(tmp_path: Path, scenario: str) -> None:
    arguments = ["ledger", "--json", "--quick", "--only", scenario, "--folder", str(tmp_path)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert all(line["scenario"].startswith(scenario) for line in lines) and lines
    assert all(line["value"] > 0 and line["limit"] > 0 for line in lines)
    assert list(tmp_path.iterdir()) == []
