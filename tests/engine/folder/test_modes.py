"""Only its owner may read a folder, whether it was new or existed before."""

import os
from pathlib import Path

import pytest

import herdbook
from engine.folder.modes import set_private_umask
from herdbook.finding import find


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_the_folder_of_a_new_store_is_its_owners_alone(tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "farm" / "data"):
        assert mode_of(tmp_path / "farm" / "data") == 0o700
    assert mode_of(Path(find(str(tmp_path / "made"), {}, create=True))) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777])
def test_a_folder_that_was_there_is_closed_to_others(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    with herdbook.open(tmp_path / "data"):
        assert mode_of(tmp_path / "data") == 0o700


def test_a_folder_that_all_users_share_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o1777)
    with herdbook.open(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o1777


def test_each_folder_within_an_open_one_is_closed_to_others(tmp_path: Path) -> None:
    """Also where the folder itself cannot be closed, as that of another user."""
    with herdbook.open(tmp_path / "data") as book:
        with book.sql() as connection:
            connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        book.tasks.submit("milk")
        open_ones = [
            found.relative_to(tmp_path)
            for found in (tmp_path / "data").rglob("*")
            if found.is_dir() and mode_of(found) & 0o077
        ]
        assert open_ones == []


def test_a_server_lets_nobody_else_read_what_it_makes(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        set_private_umask()
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        assert (mode_of(tmp_path / "file"), mode_of(tmp_path / "folder")) == (0o600, 0o700)
    finally:
        os.umask(before)
