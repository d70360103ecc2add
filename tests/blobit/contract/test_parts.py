"""Objects of parts, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.parts_contract import PartsContract
from tests.blobit.contract.stores import Store, clustered, embedded, lonely


class TestEmbedded(PartsContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(PartsContract):
    """Names elsewhere, in a tablespace that buckets share."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)


class TestLonely(PartsContract):
    """Names elsewhere, in a tablespace of the bucket's own."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return lonely(path)
