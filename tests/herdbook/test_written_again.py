"""Damage that a scrub has mended: the folder's check tells it from damage that waits."""

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from engine import cluster
from engine.bookie.__main__ import app as looks
from engine.bookie.tools_dump import dump_folder
from engine.bookie.tools_folder import quiet_folders
from herdbook.cli.main import app


async def fill(store: Path) -> int:
    async with cluster.open(store, bookies=2) as client:
        writer = await client.create_ledger(2, 2, 2)
        await writer.append_many([b"moo %d" % number for number in range(50)])
        await writer.close()
        return writer.ledger_id


def harm(bookie: Path, ledger_id: int) -> None:
    """Flip a bit of the last byte of the ledger's first run."""
    with quiet_folders([bookie]) as (folder,):
        line = next(one for one in dump_folder(folder, ledger_id=ledger_id) if one["kind"] == "RUN")
    segment = sorted((bookie / "journal").glob("*.segment"))[int(str(line["segment"])) - 1]
    data = bytearray(segment.read_bytes())
    data[int(str(line["offset"])) + int(str(line["size_bytes"])) - 1] ^= 1
    segment.write_bytes(data)


def test_entries_that_were_written_again_are_a_note_and_no_problem(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ledger_id = asyncio.run(fill(store))
    bookie = store / "bookie-1"
    harm(bookie, ledger_id)
    runner = CliRunner()
    before = runner.invoke(looks, ["check", str(bookie)])
    assert before.exit_code == 1 and "not healthy" in before.output
    scrubbed = runner.invoke(app, ["repair", "scrub", "--wait", "--url", str(store)])
    assert scrubbed.exit_code == 0 and "1 ledgers were faulty, 0 still are" in scrubbed.stdout
    assert str(ledger_id) in scrubbed.stdout and "from 49 on" in " ".join(scrubbed.stdout.split())
    after = runner.invoke(looks, ["check", str(bookie)])
    assert after.exit_code == 0, after.output
    said = " ".join(after.output.split())
    assert f"entries 49 to 49 of ledger {ledger_id} are damaged" in said and "again" in said
