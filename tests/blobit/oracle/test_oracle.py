"""Ten thousand random operations beside a dictionary: no byte is lost or mixed, nothing leaks."""

from pathlib import Path

from tests.blobit.oracle.running import Run

OPERATIONS = 10_000


async def test_random_operations_leave_what_the_dictionary_says_and_nothing_else(
    tmp_path: Path,
) -> None:
    report = await Run(1, tmp_path).run(OPERATIONS)
    assert report.operations >= OPERATIONS
    assert report.crashes >= 3 and report.reopenings >= 3
    assert report.moved_objects > 0 and report.deleted_ledgers > 50
