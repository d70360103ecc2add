"""A key that one node at a time holds: who the auditor is, who repairs a ledger.

Nothing rests on it but economy. Two nodes that both believe to hold a key for a while do the same
work twice; what they write is decided by compare-and-set.

Invariants:
- A claim is held only if the key was just read and names this node.
- The key is ephemeral: it goes with the node's session, and the claim with it.
"""

from engine.errors import KeyExists, MetadataUnavailable
from engine.metadata.contract import MetadataStore


class Claim:
    """One key, for one node. `node` is a name that no other node has."""

    def __init__(self, store: MetadataStore, key: str, node: str) -> None:
        self.key = key
        self._store = store
        self._node = node.encode()

    async def hold(self) -> bool:
        """Take the key if nobody has it; tell whether it is ours. Raises `MetadataUnavailable`.

        A creation whose reply was lost is found here the next time: the key names this node.
        """
        found = await self._store.get(self.key)
        if found is not None:
            return found.value == self._node
        try:
            await self._store.create(self.key, self._node, ephemeral=True)
        except KeyExists:
            return False
        return True

    async def still(self) -> bool:
        """Whether the key is ours now. Raises `MetadataUnavailable`."""
        found = await self._store.get(self.key)
        return found is not None and found.value == self._node

    async def release(self) -> None:
        """Give the key up, if it is ours. What cannot be said now, the session's end will say."""
        try:
            if await self.still():
                await self._store.delete(self.key)
        except MetadataUnavailable:
            return
