"""A cluster's url where a folder's path belongs: refused by all who take one, and nothing made."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import engine
import herdbook
from engine.bookie.__main__ import app
from engine.errors import InvalidRequest
from herdbook.cli.main import app as herdbook_app

URLS = ("herdbook://zk:2181/prod", "herdbook:", "file:///data", Path("herdbook://zk:2181/prod"))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("url", URLS)
async def test_the_engine_opens_no_folder_called_like_a_cluster(
    url: str | Path, empty_folder: Path
) -> None:
    with pytest.raises(InvalidRequest, match=r"engine\.connect"):
        async with engine.open(url):
            raise AssertionError("opened")
    assert os.listdir(empty_folder) == []


@pytest.mark.parametrize("url", URLS)
def test_the_front_door_says_how_a_cluster_is_reached(url: str | Path, empty_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"herdbook\.connect\(url\)"):
        herdbook.open(url)
    assert os.listdir(empty_folder) == []


def test_metadata_are_rebuilt_into_no_folder_called_like_a_url(empty_folder: Path) -> None:
    result = CliRunner().invoke(
        app, ["rebuild-metadata", ".", "--into", "zookeeper://zk:2181/prod"]
    )
    assert result.exit_code == 2 and "herdbook://" in result.stderr
    assert os.listdir(empty_folder) == []


@pytest.mark.parametrize("path", ["./herdbook:/x", "x:y", "a", "C:/data", "data:x", "a/b:/c"])
async def test_what_is_no_url_stays_a_path(path: str, empty_folder: Path) -> None:
    async with engine.open(path) as client:
        assert client.path == empty_folder / path and client.path.is_dir()


@pytest.mark.parametrize(
    "command",
    [
        ("bookie", "--data", "herdbook://zk:2181/prod", "--zookeeper", "127.0.0.1:1"),
        ("zookeeper", "--data", "herdbook://zk:2181/prod"),
        ("demo", ".", "--data", "herdbook://zk:2181/prod"),
    ],
)
def test_no_command_makes_a_folder_called_like_a_cluster(
    command: tuple[str, ...], empty_folder: Path
) -> None:
    result = CliRunner().invoke(herdbook_app, list(command))
    assert result.exit_code in (1, 2) and "url" in result.stderr
    assert os.listdir(empty_folder) == []
