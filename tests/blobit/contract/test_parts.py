"""Objects of parts, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.parts_contract import PartsContract
from tests.blobit.contract.stores import Store, clustered, embedded


class TestEmbedded(PartsContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(PartsContract):
    """Names in tablespaces elsewhere."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)
