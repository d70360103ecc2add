"""The benchmark of the scheduler: it is as full as it states, and prints JSON."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks import broker_take
from benchmarks.__main__ import app


def test_as_many_tasks_of_as_many_tenants_wait_as_is_stated() -> None:
    scheduler = broker_take.filled(100_000)
    assert scheduler.waiting == 100_000
    assert len({queue.key.tenant for queue in scheduler.queues()}) == broker_take.TENANTS
    assert len(scheduler.take(broker_take.WORKER, broker_take.PLACES, 0)) == broker_take.PLACES


def test_a_flood_delays_another_tenants_first_task_by_one_freed_place(tmp_path: Path) -> None:
    arguments = ["broker", "--json", "--quick", "--only", "take-flood", "--folder", str(tmp_path)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    (line,) = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (line["scenario"], line["value"]) == ("take-flood-places", 1)
