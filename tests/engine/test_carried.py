"""Who reads ledgers in a process, and over which connection."""

from unittest.mock import patch

from engine.carried import Carried, held_reader
from engine.place import Place

PLACE = Place(url="herdbook://zookeeper-1:2181/prod")


def test_who_carries_nothing_reads_by_the_client_that_the_process_has_anyway() -> None:
    with patch("engine.carried.held_client") as held:
        assert held_reader(PLACE, Carried()) is held.return_value
