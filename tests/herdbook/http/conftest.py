"""One open folder for all tests of HTTP that a process runs: opening one takes half a second."""

from collections.abc import Iterator

import pytest

from tests.herdbook.http.yard import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A folder with what a user of each kind has in it."""
    made = Node(tmp_path_factory.mktemp("http") / "store")
    try:
        ask = made.open()
        for name in ("alma", "other"):
            ask.json("POST", "/buckets", json={"name": name}, expect=201)
            ask.sql("default", f"CREATE TABLESPACE {name}")
            ask.sql(name, "CREATE TABLE cows (id BIGINT PRIMARY KEY, name VARCHAR)")
        yield made
    finally:
        made.close()
