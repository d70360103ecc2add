"""Deletions of buckets, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.deletion_contract import DeletionContract
from tests.blobit.contract.stores import Store, clustered, embedded


class TestEmbedded(DeletionContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(DeletionContract):
    """Names in tablespaces elsewhere."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)
