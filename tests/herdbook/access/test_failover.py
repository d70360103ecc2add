"""Users can log in after the node that created the tablespace of users was killed."""

import asyncio
import subprocess
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

from engine.access.principal import SYSTEM
from engine.connecting import connect
from engine.transport.security import Security
from herd.errors import Error
from herd.nodes import SpaceCommands
from herd.nodes.facts import missing_replicas
from herd.reaching import open_any
from herd.wire.herd import DEFAULT
from tests.acceptance.machines import free_port, until
from tests.herdbook.access.test_cluster import SECRET, House

WORD: Final = "the word of ann, and nobody's else"
LOGIN_S_MAX: Final = 10.0


def test_the_node_that_made_the_users_is_killed_and_a_user_logs_in_within_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HERDBOOK_CONFIG", raising=False)
    house = House(tmp_path)
    secret = ("--secret-file", str(house.secret_file))
    disks = [part for n in range(3) for part in ("--data", str(tmp_path / f"disk-{n}"))]

    def node(number: int) -> tuple[str, ...]:
        listen = ("--listen", f"127.0.0.1:{free_port()}")
        folder = ("--data", str(tmp_path / f"node-{number}"))
        return ("herd", "node", *secret, *folder, "--url", house.url, *listen)

    with ExitStack() as stack:
        bookies = ("--zookeeper", house.zookeeper, "--listen", "127.0.0.1:0", *disks)
        stack.enter_context(house.running("bookies", "bookie", *secret, *bookies))
        first = stack.enter_context(house.running("node-0", *node(0)))
        house.command("user", "add", "ann", "--admin", "--password-file", "-", typed=WORD)
        for number in (1, 2):
            stack.enter_context(house.running(f"node-{number}", *node(number), waits=False))
        assert asyncio.run(killed(house, first)) < LOGIN_S_MAX


async def killed(house: House, first: "subprocess.Popen[bytes]") -> float:
    """Kill the first node once the others have all replicas; how long until ann is let in."""
    async with connect(house.url, security=Security(secret=SECRET.encode())) as client:
        commands = SpaceCommands(client.store, client.clock, client.rng)

        async def whole() -> bool:
            spaces, nodes = await commands.spaces(), await commands.nodes()
            wanted = [fact.expected for fact in spaces.values()]
            lack = [missing_replicas(name, fact, nodes) for name, fact in spaces.items()]
            return set(spaces) == {DEFAULT, SYSTEM} and wanted == [3, 3] and not any(lack)

        await until("all tablespaces have three replicas", whole)
    first.kill()
    first.wait()
    login, killed_s = Security(user="ann", password=WORD), monotonic()
    async with asyncio.timeout(6 * LOGIN_S_MAX), open_any(house.url, security=login) as herd:
        while True:
            try:
                await (await herd.session(DEFAULT)).close()
                return monotonic() - killed_s
            except Error as error:
                assert error.retryable, error
