"""Quotas, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.quotas_contract import QuotasContract
from tests.blobit.contract.stores import Store, clustered, embedded


class TestEmbedded(QuotasContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(QuotasContract):
    """Names in tablespaces elsewhere."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)
