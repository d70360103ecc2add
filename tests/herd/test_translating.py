"""Errors of the engine, as who uses tables hears of them."""

from engine.errors import MetadataUnavailable, NoZooKeeper
from herd.translating import translated


def test_who_has_misspelt_an_address_is_not_told_to_try_again() -> None:
    assert translated(NoZooKeeper("check host and port")).hint == ""
    assert translated(MetadataUnavailable("the connection was lost")).hint == "try again"
