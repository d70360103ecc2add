"""Ports that clusters on one machine take."""

import socket

from herdbook.node.ports import Ports
from herdbook.zookeeper_server import free_port

HOST = "127.0.0.1"


def test_two_clusters_that_start_at_once_take_different_ports() -> None:
    """Nobody listens yet when the second one looks."""
    wanted = free_port(HOST)
    with Ports(HOST) as first:
        assert first.take("x", wanted) == wanted
        with Ports(HOST) as second:
            other = second.take("x", wanted)
            assert other != wanted and second.moved == {"x": (wanted, other)}
            assert first.take("x", other) not in (wanted, other)
        assert first.take("x", other) == other
    with Ports(HOST) as third:
        assert third.take("x", wanted) == wanted


def test_a_port_at_which_somebody_listens_is_not_taken() -> None:
    with socket.create_server((HOST, 0)) as listening, Ports(HOST) as ports:
        wanted = listening.getsockname()[1]
        taken = ports.take("x", wanted)
        assert ports.moved == {"x": (wanted, taken)}
        with socket.create_server((HOST, taken)):
            pass
