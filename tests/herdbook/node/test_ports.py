"""Ports that clusters on one machine take."""

import socket
from pathlib import Path

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


def test_a_cluster_that_is_started_again_has_the_ports_that_it_had(tmp_path: Path) -> None:
    """Though those that people know are somebody else's before, and free by now."""
    file = tmp_path / "ports.json"
    with socket.create_server((HOST, 0)) as others:
        wanted = others.getsockname()[1]
        with Ports(HOST, file=file) as first:
            had = first.take("x", wanted)
            first.remember()
    for _ in range(2):
        with Ports(HOST, file=file) as again:
            assert again.take("x", wanted) == had and again.moved == {"x": (wanted, had)}
    with socket.create_server((HOST, had)), Ports(HOST, file=file) as without:
        assert without.take("x", wanted) == wanted and not without.moved
    file.write_bytes(b"{half")
    with Ports(HOST, file=file) as anew:
        assert anew.take("x", wanted) == wanted
