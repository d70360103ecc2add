"""Single objects, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.objects_contract import ObjectsContract
from tests.blobit.contract.stores import Store, clustered, embedded, lonely


class TestEmbedded(ObjectsContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(ObjectsContract):
    """Names elsewhere, in a tablespace that buckets share."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)


class TestLonely(ObjectsContract):
    """Names elsewhere, in a tablespace of the bucket's own."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return lonely(path)
