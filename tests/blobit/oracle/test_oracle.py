"""Ten thousand random operations beside a dictionary: no byte is lost or mixed, nothing leaks."""

import asyncio
from pathlib import Path

from engine.ports.system_loop import new_event_loop
from tests.blobit.oracle.running import Run

OPERATIONS = 6_000


def test_random_operations_leave_what_the_dictionary_says_and_nothing_else(
    tmp_path: Path,
) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        report = runner.run(Run(1, tmp_path).run(OPERATIONS))
    assert report.operations >= OPERATIONS
    assert report.crashes >= 3 and report.reopenings >= 3
    assert report.moved_objects > 0 and report.deleted_ledgers > 50
