"""Which nodes a cluster has: plug-ins that a document names, and that the coordinator has.

    static                the nodes that the document lists
    zookeeper:PATH        the names below a path of the metadata store
    command:NAME          what a command prints, a node a line; the operator gave it that name

Invariants:
- A document chooses among what the operator wired up; it never says which program is run.
- A discovery answers within its time, or has failed: nothing begins meanwhile.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from broker.errors import BrokerError, BrokerUnavailable, InvalidTask
from broker.rollouts.document import NODES_MAX, STATIC, check_node
from engine.errors import EngineError
from engine.metadata.contract import MetadataStore

TIMEOUT_S: Final = 20.0
_OUTPUT_BYTES_MAX: Final = 1024 * 1024
ZOOKEEPER: Final = "zookeeper"
COMMAND: Final = "command"


class Discovery(Protocol):
    """Finds the nodes of a cluster."""

    async def nodes(self, what: str) -> Sequence[str]:
        """The names of the nodes; `what` is the part behind the plug-in's name and the colon.

        Raises `BrokerError`.
        """
        ...


class StoreDiscovery:
    """The names below a path of a metadata store, ZooKeeper's among them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def nodes(self, what: str) -> Sequence[str]:
        """See `Discovery`; `what` is the path."""
        if not what.startswith("/"):
            raise InvalidTask(f"{ZOOKEEPER}:{what} is no path of a metadata store")
        try:
            return await self._store.children(what.rstrip("/") or "/")
        except EngineError as error:
            raise BrokerUnavailable(f"{ZOOKEEPER}:{what} cannot be read: {error}") from error


class CommandDiscovery:
    """What commands print, each known to documents by a name."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        """`commands`: the program and its arguments, for each name."""
        self._commands = dict(commands)

    async def nodes(self, what: str) -> Sequence[str]:
        """See `Discovery`; `what` is the command's name."""
        command = self._commands.get(what)
        if command is None:
            raise InvalidTask(f"no operator has set up a command {what!r} to discover nodes")
        pipe = asyncio.subprocess.PIPE
        try:
            running = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise BrokerUnavailable(f"the command {what} cannot be run: {error}") from error
        try:
            output, said = await running.communicate()
        finally:
            if running.returncode is None:
                with suppress(ProcessLookupError):
                    running.kill()
                await running.wait()
        if running.returncode:
            text = said.decode(errors="replace").strip()[:300]
            raise BrokerUnavailable(f"the command {what} ended with {running.returncode}: {text}")
        if len(output) > _OUTPUT_BYTES_MAX:
            raise BrokerUnavailable(f"the command {what} printed {len(output):,} bytes")
        return [line for line in map(str.strip, output.decode().splitlines()) if line]


async def discover(plugins: Mapping[str, Discovery], discovery: str) -> tuple[str, ...]:
    """The nodes that a document's discovery names, sorted. Raises `BrokerError`."""
    name, _, what = discovery.partition(":")
    plugin = plugins.get(name)
    if plugin is None:
        known = ", ".join([STATIC, *plugins])
        raise InvalidTask(f"there is no discovery {name!r} here; there are {known}")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = sorted(set(await plugin.nodes(what)))
    except TimeoutError:
        raise BrokerUnavailable(f"{discovery} gave no answer in {TIMEOUT_S:.0f} s") from None
    except BrokerError:
        raise
    except Exception as error:
        raise BrokerUnavailable(f"{discovery} failed: {error!r}") from error
    if len(found) > NODES_MAX:
        raise BrokerUnavailable(f"{discovery} names {len(found):,} nodes; {NODES_MAX:,} fit")
    for name in found:
        check_node(name)
    return tuple(found)
