"""Who may read a folder: what is made is its owner's alone, what was there is left as it is."""

from pathlib import Path

import herdbook
from herdbook.finding import find


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_the_folder_of_a_new_store_is_its_owners_alone(tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "farm" / "data"):
        assert mode_of(tmp_path / "farm" / "data") == 0o700
    assert mode_of(Path(find(str(tmp_path / "made"), {}, create=True))) == 0o700


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o750)
    with herdbook.open(tmp_path / "data"):
        assert mode_of(tmp_path / "data") == 0o750
