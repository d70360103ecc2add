"""A store with a bucket, and the file system over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import herdbook
from herdbook import blob_store
from herdbook.fs import BlobFileSystem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("blobs")
    with herdbook.open(path):
        yield path
        blob_store.let_go(str(path))


@pytest.fixture
def files(folder: Path, request: pytest.FixtureRequest) -> Iterator[BlobFileSystem]:
    """Each test has a bucket `cows` of its own."""
    fs = BlobFileSystem(store=str(folder))
    fs.mkdir("cows")
    yield fs
    fs.rm("cows", recursive=True)
