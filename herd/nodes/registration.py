"""A node's place among the nodes: an ephemeral key that goes with its session.

Invariants:
- The key is there only while the node's session is; after a lost session it is made anew.
- What it says is what was published last.
- Two nodes with one id, as of a folder that was copied, do not take each other's place: the second
  one is not listed as long as the first one is.
"""

import asyncio
from collections.abc import Callable

from engine.errors import KeyExists, MetadataUnavailable, VersionConflict
from engine.metadata.contract import MetadataStore
from herd.nodes.facts import NODES, NodeFact, decode_node, encode_fact


class Registration:
    """One node's key. All methods on the event loop."""

    def __init__(self, store: MetadataStore, node_id: str) -> None:
        self._store = store
        self._key = f"{NODES}/{node_id}"
        self._version: int | None = None
        self._said: bytes | None = None
        self._turn = asyncio.Lock()
        self._watchers: list[Callable[[], None]] = []
        self._unwatch = store.watch_session(self._forget)

    @property
    def registered(self) -> bool:
        """Whether the key is there, as far as is known."""
        return self._version is not None

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` whenever the session has ended."""
        self._watchers.append(lost)

    async def publish(self, fact: NodeFact) -> None:
        """Say what this node is and does, unless that was said. Raises `MetadataUnavailable`."""
        value = encode_fact(fact)
        async with self._turn:
            if self._version is not None and value == self._said:
                return
            if self._version is not None:
                try:
                    self._version = await self._store.set(self._key, value, self._version)
                    self._said = value
                    return
                except (VersionConflict, MetadataUnavailable):
                    # Of a lost reply, or of a session that has ended: made anew.
                    self._version = None
            await self._register(value)

    async def _register(self, value: bytes) -> None:
        """Make the key; one of this node's earlier session, which may go any time, is replaced."""
        try:
            self._version = await self._store.create(self._key, value, ephemeral=True)
        except KeyExists:
            await self._check_own(value)
            await self._store.delete(self._key)
            try:
                self._version = await self._store.create(self._key, value, ephemeral=True)
            except KeyExists as error:
                raise MetadataUnavailable(f"{self._key} is made by somebody else") from error
        self._said = value

    async def _check_own(self, value: bytes) -> None:
        """Raise `MetadataUnavailable` if a node at another address has this one's id."""
        found = await self._store.get(self._key)
        if found is None:
            return
        address = decode_node(found.value).address
        if address != decode_node(value).address:
            raise MetadataUnavailable(
                f"a node at {address} has the same id: it has moved, and its old session ends in a "
                "moment, or its folder was copied"
            )

    async def close(self) -> None:
        """Be a node no more; what cannot be said now, the session's end will say."""
        self._unwatch()
        async with self._turn:
            self._version = None
            try:
                await self._store.delete(self._key)
            except MetadataUnavailable:
                return

    def _forget(self) -> None:
        self._version = None
        for lost in self._watchers:
            lost()
