"""Walking a folder: what can be stored, and what cannot with its reason."""

import os
import socket
from pathlib import Path

from herdbook.walk import walk


def test_regular_files_are_found_in_the_same_order_every_time(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/1.txt", "c.txt", "b/deep/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    files, skipped = walk(tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in files]
    assert names == ["c.txt", "a/1.txt", "b/2.txt", "b/deep/3.txt"]
    assert skipped == []


def test_links_sockets_and_pipes_are_skipped_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("moo")
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-nothing").symlink_to("nothing")
    (tmp_path / "to-itself").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    here = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{here}/socket")
    os.close(here)
    files, skipped = walk(tmp_path)
    assert [path.name for path in files] == ["file"]
    assert {Path(skip.path).name: skip.reason for skip in skipped} == {
        "to-file": "symbolic link",
        "to-nothing": "symbolic link",
        "to-itself": "symbolic link",
        "pipe": "no regular file",
        "socket": "socket",
    }


def test_caches_and_other_peoples_packages_are_left_out(tmp_path: Path) -> None:
    for name in ("__pycache__", "site-packages", ".git", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("moo")
    files, _ = walk(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in files] == ["kept/file"]


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    files, skipped = walk(tmp_path / "nothing")
    assert files == [] and len(skipped) == 1
