"""Places: what travels, what a process keeps open, and what a forked child has of it."""

import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine
from engine.access.tokens import READ, Claims, sign
from engine.errors import FolderError, InvalidRequest
from engine.place import Holding, Place, held_client, let_go
from engine.ports.system_loop import background_loop
from engine.transport.security import Security
from tests.engine.access.known_users import KEY


def made(folder: Path) -> Place:
    """A folder that holds a store which nobody has open."""

    async def make() -> None:
        async with engine.open(folder):
            pass

    background_loop().run(make)
    return Place(url=str(folder))


def test_a_process_has_one_client_of_a_place(tmp_path: Path) -> None:
    place = made(tmp_path / "data")
    held = held_client(place)
    assert held_client(pickle.loads(pickle.dumps(place))) is held
    assert held.run(held.client.list_ledgers) == held.begin(held.client.list_ledgers).result()
    let_go(place)
    assert held_client(place) is not held
    let_go(place)


def test_a_client_of_a_place_has_the_newest_token_that_its_process_was_told_of() -> None:
    opened: list[Security] = []

    class Opened:
        """Something held, that needs no loop."""

        usable = True

        def close(self) -> None:
            """See `Held`."""

    def open_it(place: Place) -> Any:
        opened.append(place.make_security())
        return Opened()

    def token(ends_ms: int) -> str:
        return sign(Claims(READ, "ann", ends_ms), KEY)

    holding: Holding[Any] = Holding(open_it)
    first = Place(url="herdbook://host:2181/prod", token=token(1), renewed="/elsewhere/token")
    held = holding.at(first)
    [security] = opened
    assert security.at_bookies().token == token(1)
    assert holding.at(msgspec.structs.replace(first, token=token(3))) is held
    assert holding.at(msgspec.structs.replace(first, token=token(2))) is held
    assert security.at_bookies().token == token(3)
    assert holding.at(first.at(None, token(2))) is not held, "an option counts by itself"
    assert opened[-1].at_bookies().token == token(2)
    holding.let_go(first)
    assert holding.at(first) is not held


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    place = made(tmp_path / "data")
    held = held_client(place)
    child = os.fork()
    if not child:
        own = held_client(place)
        alike = own is held or own.run(own.client.list_ledgers) != []
        os._exit(1 if alike else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.run(held.client.list_ledgers) == []
    let_go(place)


def test_a_folder_that_holds_no_store_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="holds no store"):
        held_client(Place(url=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_place_names_another_store_that_is_spoken_to_alike() -> None:
    place = Place(secret_file="/secrets/herd")
    with pytest.raises(InvalidRequest, match="no store is named"):
        place.at(None)
    cluster = place.at("herdbook://host:2181/prod")
    assert cluster.is_cluster and cluster.secret_file == "/secrets/herd"
    assert Path(place.at("data").url).is_absolute()


def test_a_secret_that_is_not_on_this_machine_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "secret"
    with pytest.raises(InvalidRequest, match="no such file on this machine"):
        Place(secret_file=str(missing)).make_security()
    missing.write_bytes(b"sixteen bytes or more\n")
    missing.chmod(0o600)
    security = Place(secret_file=str(missing)).make_security()
    assert security.secret == b"sixteen bytes or more"
