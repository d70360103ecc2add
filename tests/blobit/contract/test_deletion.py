"""Deletions of buckets, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.deletion_contract import DeletionContract
from tests.blobit.contract.stores import Store, clustered, embedded, lonely


class TestEmbedded(DeletionContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(DeletionContract):
    """Names elsewhere, in a tablespace that buckets share."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)


class TestLonely(DeletionContract):
    """Names elsewhere, in a tablespace of the bucket's own."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return lonely(path)
