"""Listings, with names in this process and elsewhere."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.blobit.contract.listing_contract import ListingContract
from tests.blobit.contract.stores import Store, clustered, embedded, lonely


class TestEmbedded(ListingContract):
    """Names in this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return embedded(path)


class TestClustered(ListingContract):
    """Names elsewhere, in a tablespace that buckets share."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return clustered(path)


class TestLonely(ListingContract):
    """Names elsewhere, in a tablespace of the bucket's own."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Store]:
        return lonely(path)
