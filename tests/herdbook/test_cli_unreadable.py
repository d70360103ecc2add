"""`herdbook ledger` beside a ledger whose metadata cannot be read."""

from pathlib import Path

import pytest

from engine import cluster
from engine.metadata.ledgers import LEDGERS
from tests.herdbook.test_cli_store import call, objects, within, written

NEWER = b"\x81\xacformat_major\x63"


async def two_written(engine: cluster.Engine) -> tuple[int, int]:
    return await written(engine), await written(engine)


def spoil(folder: Path, ledger_id: int, value: bytes) -> None:
    async def work(engine: cluster.Engine) -> None:
        versioned = await engine.store.get(f"{LEDGERS}/{ledger_id}")
        assert versioned is not None
        await engine.store.set(f"{LEDGERS}/{ledger_id}", value, versioned.version)

    within(folder, work)


def a_bookie(folder: Path) -> str:
    """The id of one of the folder's bookies."""
    name: str = objects(call("bookie", "ls", "--json", "--url", str(folder)))[0]["bookie"]
    return name


@pytest.mark.parametrize(("value", "words"), [(b"\xc1", "damaged"), (NEWER, "format 99")])
def test_a_ledger_that_cannot_be_read_is_listed_as_such_beside_all_others(
    tmp_path: Path, value: bytes, words: str
) -> None:
    good, bad = within(tmp_path, two_written)
    spoil(tmp_path, bad, value)
    listed = call("ledger", "ls", "--json", "--url", str(tmp_path))
    whole, broken = objects(listed)
    assert whole["ledger"] == good and whole["state"] == "CLOSED"
    assert broken["ledger"] == bad and broken["state"] == "UNREADABLE" and words in broken["why"]
    assert listed.exit_code == 0
    shown = call("ledger", "ls", "--url", str(tmp_path))
    assert "UNREADABLE" in shown.stdout and words in shown.stderr
    # It may be one of these: nobody can tell.
    for which in (("--degraded",), ("--degraded", "--bookie", a_bookie(tmp_path))):
        told = objects(call("ledger", "ls", *which, "--json", "--url", str(tmp_path)))
        assert [each["ledger"] for each in told] == [bad]


def test_a_ledger_that_cannot_be_read_is_deleted_by_force_alone(tmp_path: Path) -> None:
    good, bad = within(tmp_path, two_written)
    spoil(tmp_path, bad, b"\xc1")
    delete = ("ledger", "delete", str(good), str(bad), "--yes", "--url", str(tmp_path))
    refused = call(*delete)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr and "nothing was deleted" in refused.stderr
    assert len(objects(call("ledger", "ls", "--json", "--url", str(tmp_path)))) == 2
    assert call(*delete, "--force").exit_code == 0
    assert objects(call("ledger", "ls", "--json", "--url", str(tmp_path))) == []
