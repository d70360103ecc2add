"""Bad input is refused elsewhere in the same words as here: the whole suite, through a socket."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import herd
from herd.connection import Connection
from tests.herd import test_bad_input
from tests.herd.test_bad_input import TABLES, VALUES, refused

SUITE = {name: each for name, each in vars(test_bad_input).items() if name.startswith("test_")}
globals().update(SUITE, connection=test_bad_input.connection)


@pytest.fixture(scope="module")
def tables(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[herd.Herd]:
    """The tables are run by another loop of this process."""
    folder = tmp_path_factory.mktemp("bad")
    ready, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def own() -> None:
        async with herd.open_folder(folder) as opened:
            await opened.tablespace()
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    owner = threading.Thread(target=asyncio.run, args=(own(),))
    owner.start()
    ready.wait()
    try:
        with herd.open_herd(folder) as opened:
            with opened.connect(autocommit=True) as connection:
                for text in TABLES:
                    connection.execute(text)
            yield opened
    finally:
        loops[0].call_soon_threadsafe(over.set)
        owner.join()


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_does_not_fit_is_a_data_error(connection: Connection, name: str) -> None:
    """What cannot be sent at all is refused before anybody knows which column it was for."""
    column, value, kind = VALUES[name]
    row = {"id": 950, "name": "x"} | {column: value}
    insert = f"INSERT INTO cow ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    assert refused(connection, insert, list(row.values()), kind).code.startswith("22")


def test_the_suite_is_the_same() -> None:
    assert len(SUITE) > 15 and SUITE.keys() <= globals().keys()
