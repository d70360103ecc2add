"""Buckets, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.buckets_contract import BucketsContract
from tests.blobit.contract.stores import Store, clustered, embedded, lonely


class TestEmbedded(BucketsContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(BucketsContract):
    """Names elsewhere, in a tablespace that buckets share."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)


class TestLonely(BucketsContract):
    """Names elsewhere, in a tablespace of the bucket's own."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return lonely(path)
