"""Folders of which a part is damaged: what is left is opened, and what to do is said."""

import logging
import shutil
from pathlib import Path

import pytest

import engine
from engine.errors import FolderDamaged


async def filled(folder: Path, bookies: int) -> int:
    """A folder with one closed ledger of a hundred entries; returns its id."""
    async with engine.open(folder, bookies=bookies) as client:
        writer = await client.create_ledger()
        await writer.append_many([b"%d" % number for number in range(100)])
        await writer.close()
        return writer.ledger_id


async def read_all(client: engine.Engine, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


def spoil_index(bookie: Path) -> None:
    """No file of the index is what it was."""
    for file in (bookie / "index").iterdir():
        if file.suffix == ".sst" or file.name.startswith("MANIFEST"):
            file.write_bytes(b"moo" * (file.stat().st_size // 3 + 1))


def spoil_identity(bookie: Path) -> None:
    (bookie / "identity").write_bytes(b"moo")


def lose_identity(bookie: Path) -> None:
    (bookie / "identity").unlink()


@pytest.mark.parametrize("spoil", [spoil_index, spoil_identity, lose_identity])
async def test_a_damaged_bookie_is_left_out_and_named_and_the_others_serve(
    tmp_path: Path, spoil: object, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_id = await filled(tmp_path / "herd", 3)
    assert callable(spoil)
    spoil(tmp_path / "herd" / "bookie-2")
    with caplog.at_level(logging.WARNING, "engine.folder"):
        async with engine.open(tmp_path / "herd") as client:
            assert len(await read_all(client, ledger_id)) == 100
            writer = await client.create_ledger()
            assert await writer.append(b"moo") == 0
            await writer.close()
    assert "bookie-2" in caplog.text


async def test_an_only_bookie_with_a_damaged_index_says_what_cures_it_and_it_does(
    tmp_path: Path,
) -> None:
    ledger_id = await filled(tmp_path / "herd", 1)
    spoil_index(tmp_path / "herd" / "bookie-1")
    for _ in range(2):
        with pytest.raises(FolderDamaged, match="index"):
            async with engine.open(tmp_path / "herd"):
                raise AssertionError("it opened")
    shutil.rmtree(tmp_path / "herd" / "bookie-1" / "index")
    async with engine.open(tmp_path / "herd") as client:
        assert len(await read_all(client, ledger_id)) == 100
