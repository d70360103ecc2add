"""The folder of backups: what is kept in it, what goes, in which order, and where it may lie."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

import herdbook
from engine.errors import CannotRead
from herdbook.archive import BackupFolder, StoreManifest, manifest, restore
from herdbook.archive.framing import END, FrameWriter, read_frames
from herdbook.archive.ledger_file import (
    _BLOCK,
    _END,
    _ID,
    FORMAT_MAJOR,
    MAGIC,
    LedgerFileWriter,
    read_blocks,
)
from herdbook.archive.manifest import UNFINISHED, KeptLedger
from tests.herdbook.test_archive import call, told

STORE = "store-1"


def finished(folder: BackupFolder, *ledger_ids: int) -> None:
    """One more backup in a folder, of ledgers of one entry each."""
    with folder.writing(STORE) as number:
        for ledger_id in ledger_ids:
            with LedgerFileWriter(folder.ledger(ledger_id, 0), ledger_id) as file:
                file.add([b"moo"])
        kept = (KeptLedger(each, 0, 3, 1, 1, 1, 256, b"", 0, {}) for each in ledger_ids)
        folder.finish(StoreManifest(number, STORE, "folder", "1", 0, 0, 0, 1, 99, {}, tuple(kept)))


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    """Four backups: each has a ledger of its own, and one that all have."""
    folder = BackupFolder(tmp_path / "backups")
    for number in range(1, 5):
        finished(folder, 7, 10 + number)
    return folder


def files_of(folder: BackupFolder) -> list[str]:
    return sorted(each.name for each in (folder.path / "ledgers").iterdir())


def names_of(ledger_ids: Sequence[int]) -> list[str]:
    return sorted(f"{each}-0.ledger" for each in ledger_ids)


def test_what_no_backup_that_is_kept_names_goes_with_the_old_ones(folder: BackupFolder) -> None:
    folder.doubt(14, 0).touch()
    assert folder.forget(2) == []
    assert folder.numbers() == [3, 4]
    assert files_of(folder) == names_of([7, 13, 14])


@pytest.mark.parametrize("damaged", [3, 4])
def test_nothing_is_removed_where_a_backup_that_is_kept_cannot_be_read(
    folder: BackupFolder, damaged: int
) -> None:
    path = folder.path / f"{damaged:06}.manifest"
    path.write_bytes(b"")
    (told,) = folder.forget(2)
    assert str(path) in told
    assert folder.numbers() == [1, 2, 3, 4]
    assert files_of(folder) == names_of([7, 11, 12, 13, 14])
    finished(folder, 7, 15)
    finished(folder, 7, 16)
    assert folder.forget(2) == []
    assert files_of(folder) == names_of([7, 15, 16])


def test_files_go_when_the_manifests_that_named_them_have_gone_for_ever(
    folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(path: Path) -> None:
        assert path == folder.path and folder.numbers() == [3, 4]
        raise OSError("somebody pulls the plug")

    monkeypatch.setattr(manifest, "sync_folder", pulled)
    with pytest.raises(OSError, match="plug"):
        folder.forget(2)
    assert files_of(folder) == names_of([7, 11, 12, 13, 14])


def test_a_backup_beside_one_that_cannot_be_read_is_whole_and_says_so(tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "store"):
        pass
    command = ("store", "backup", tmp_path / "backups", "--url", tmp_path / "store", "--keep", 2)
    for _ in range(2):
        assert call(*command).exit_code == 0
    (tmp_path / "backups" / "000002.manifest").write_bytes(b"")
    made = call(*command)
    assert made.exit_code == 0 and "backup 3 is whole" in made.stdout
    assert "no old one was removed" in made.stderr and "000002.manifest" in made.stderr
    assert BackupFolder(tmp_path / "backups").numbers() == [1, 2, 3]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a table; and a link to the folder around it."""
    store = tmp_path / "farm" / "store"
    with herdbook.open(store) as book, book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
    (tmp_path / "linked").symlink_to(tmp_path / "farm")
    return store


@pytest.mark.parametrize(
    "name", ["farm/store/backups", "farm/store", "farm", "linked/store/a/b", "farm/x/../store/y"]
)
def test_a_store_is_not_backed_up_into_its_own_folder_nor_into_one_around_it(
    store: Path, tmp_path: Path, name: str
) -> None:
    for url in (store, tmp_path / "linked" / "store"):
        refused = call("store", "backup", tmp_path / name, "--url", url)
        assert refused.exit_code == 1 and "lie one in the other" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob(UNFINISHED))


@pytest.mark.parametrize("name", ["bk/again", "bk", "linked/bk/again", "farm/../bk/x", "here"])
def test_a_backup_is_not_restored_into_its_own_folder(
    store: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "farm" / "bk").symlink_to(tmp_path / "bk")
    (tmp_path / "here.restoring").symlink_to(tmp_path / "bk")
    assert call("store", "backup", tmp_path / "bk", "--url", store).exit_code == 0
    before = sorted(tmp_path.rglob("*"))
    refused = call("store", "restore", tmp_path / "bk", "--url", tmp_path / name)
    assert refused.exit_code == 1 and "lie one in the other" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_restored_to_where_it_leads(store: Path, tmp_path: Path) -> None:
    assert call("store", "backup", tmp_path / "bk", "--url", store).exit_code == 0
    (tmp_path / "disk" / "again").mkdir(parents=True)
    (tmp_path / "again").symlink_to(tmp_path / "disk" / "again")
    made = call("store", "restore", tmp_path / "bk", "--url", tmp_path / "again")
    assert made.exit_code == 0, made.output
    with herdbook.open(tmp_path / "disk" / "again") as book, book.sql() as connection:
        assert connection.execute("SELECT count(*) FROM cow").fetchall() == [(0,)]


def pulling_the_plug_at(monkeypatch: pytest.MonkeyPatch, wanted: Path) -> None:
    """No sync of a folder ends: somebody pulls the plug before."""

    def pulled(path: Path) -> None:
        if path == wanted:
            raise OSError("somebody pulls the plug")

    monkeypatch.setattr(manifest, "sync_folder", pulled)


def test_a_backup_has_its_manifest_when_its_files_have_their_names_for_ever(
    folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling_the_plug_at(monkeypatch, folder.path / "ledgers")
    with pytest.raises(OSError, match="plug"):
        finished(folder, 7, 15)
    assert folder.numbers() == [1, 2, 3, 4] and folder.unfinished


def test_a_backup_is_unfinished_until_its_manifest_is_there_for_ever(
    folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not folder.unfinished
    pulling_the_plug_at(monkeypatch, folder.path)
    with pytest.raises(OSError, match="plug"):
        finished(folder, 7, 15)
    assert folder.unfinished


def test_a_file_has_its_name_when_its_bytes_are_there_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(descriptor: int) -> None:
        raise OSError("somebody pulls the plug")

    monkeypatch.setattr("os.fsync", pulled)
    with pytest.raises(OSError, match="plug"), LedgerFileWriter(tmp_path / "7", 7) as file:
        file.add([b"moo"])
    assert not (tmp_path / "7").exists()


def test_a_file_of_another_ledger_or_of_fewer_entries_is_no_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "7-1.ledger"
    with LedgerFileWriter(path, 7) as file:
        file.add([b"moo"])
        file.add([b"m", b"oo"])
    assert list(read_blocks(path, 7, 2, 6)) == [[b"moo"], [b"m", b"oo"]]
    for asked in ((8, 2, 6), (7, 3, 6), (7, 1, 6), (7, 2, 7)):
        with pytest.raises(CannotRead):
            list(read_blocks(path, *asked))


def test_a_block_that_is_told_twice_is_found(tmp_path: Path) -> None:
    path = tmp_path / "7-0.ledger"
    block = _BLOCK.pack(0, 1) + struct.pack(">I", 3) + b"moo"
    with FrameWriter(path, MAGIC, FORMAT_MAJOR) as file:
        for kind, blob in ((b"H", _ID.pack(7)), (b"R", block), (b"R", block)):
            file.frame(kind, blob)
        file.frame(END, _END.pack(1, 6))
    with pytest.raises(CannotRead, match="entry 1 does not follow"):
        list(read_blocks(path, 7, 1, 6))


def test_a_manifest_that_names_fewer_ledgers_than_it_says_is_damaged(folder: BackupFolder) -> None:
    whole = folder.path / "000004.manifest"
    frames = list(read_frames(whole, manifest.MAGIC, manifest.FORMAT_MAJOR))
    with FrameWriter(whole, manifest.MAGIC, manifest.FORMAT_MAJOR) as file:
        for kind, blob in frames:
            if kind != b"L":
                file.frame(kind, blob)
    with pytest.raises(CannotRead, match="does not name all ledgers"):
        folder.read()


def test_a_new_folder_of_backups_is_there_for_ever_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(manifest, "sync_folder", synced.append)
    folder = BackupFolder(tmp_path / "far" / "away" / "backups")
    with folder.writing(STORE):
        assert sorted(synced) == [tmp_path, tmp_path / "far", tmp_path / "far" / "away"]


def test_a_restoration_that_ends_before_the_folder_has_its_name_is_gone_on_with(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(part: Path, target: Path) -> None:
        raise OSError("somebody pulls the plug")

    command = ("store", "restore", tmp_path / "bk", "--url", tmp_path / "again", "--json")
    assert call("store", "backup", tmp_path / "bk", "--url", store).exit_code == 0
    with monkeypatch.context() as patched:
        patched.setattr(restore, "_appear", pulled)
        assert call(*command).exit_code == 1
    assert not (tmp_path / "again").exists()
    assert told(call(*command))["written"] == 0
    with herdbook.open(tmp_path / "again") as book, book.sql() as connection:
        assert connection.execute("SELECT count(*) FROM cow").fetchall() == [(0,)]


def test_a_restored_folder_is_told_of_when_its_name_is_there_for_ever(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(path: Path) -> None:
        assert path == tmp_path and (path / "again").is_dir()
        raise OSError("somebody pulls the plug")

    assert call("store", "backup", tmp_path / "bk", "--url", store).exit_code == 0
    monkeypatch.setattr(restore, "sync_folder", pulled)
    made = call("store", "restore", tmp_path / "bk", "--url", tmp_path / "again")
    assert made.exit_code == 1 and "plug" in made.stderr
