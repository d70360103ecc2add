"""The url of a cluster: what it says, and what it may not say."""

import pytest

from engine.connecting import connect
from engine.errors import InvalidRequest
from engine.metadata.cluster_url import ClusterUrl, parse_url


def test_a_url_names_servers_and_a_path() -> None:
    url = parse_url("herdbook://zk1:2181,zk2:2182/prod/herd")
    assert url == ClusterUrl("zk1:2181,zk2:2182", "/prod/herd")
    assert str(url) == "herdbook://zk1:2181,zk2:2182/prod/herd"


def test_ports_and_the_path_may_be_left_out() -> None:
    assert parse_url("herdbook://zk1,[::1]") == ClusterUrl("zk1:2181,[::1]:2181", "/")
    assert str(parse_url("herdbook://zk1/")) == "herdbook://zk1:2181"
    assert parse_url("herdbook://10.0.0.1:99/prod/").chroot == "/prod"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "./folder",
        "zk://one:2181/prod",
        "herdbook://",
        "herdbook:///prod",
        "herdbook://one:2181,/prod",
        "herdbook://one:port/prod",
        "herdbook://one:0/prod",
        "herdbook://one:70000/prod",
        "herdbook://user@one:2181/prod",
        "herdbook://one:2181/prod//herd",
        "herdbook://one:2181/../herd",
        "herdbook://one:2181/./herd",
        "herdbook://one:2181/a b",
        "herdbook://one:2181/prod?x=1",
        "herdbook://one:2181/zookeeper",
    ],
)
def test_a_malformed_url_is_one_clear_error(url: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        parse_url(url)
    assert "\n" not in str(failure.value) and repr(url) in str(failure.value)


async def test_a_wire_that_does_not_exist_is_refused_before_anything_is_dialled() -> None:
    with pytest.raises(InvalidRequest, match="framed or grpc"):
        async with connect("herdbook://localhost:1", wire="pigeon"):  # type: ignore[arg-type]
            raise AssertionError("connected")
