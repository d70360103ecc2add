"""Watches that last, made of ZooKeeper's, which fire once.

Invariants:
- A watcher is called after the key's nodes were armed, never before: what changes from then on
  fires again, and what changed before is seen by who looks now.
- Of one key there is at most one arming on its way; further events make one more, not many.
- Of a prefix of numbered keys, its folders are armed too. A folder that comes fires first.
- A new connection arms everything anew and tells everyone: anything may have changed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from engine.errors import EngineError, NotFound
from engine.metadata.zookeeper_client import ConnectionLost, ZooKeeperClient
from engine.metadata.zookeeper_paths import NUMBERED, Layout, Spread

_ARMED_AT_ONCE: Final = 32
_RETRY_S: Final = 0.5

Watcher = Callable[[], None]


class Watches:
    """The watched keys of one store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._loop = asyncio.get_running_loop()
        self._client: ZooKeeperClient | None = None
        self._watchers: dict[str, dict[object, Watcher]] = {}
        self._keys: dict[str, str] = {}
        """Nodes that may be armed, and the key that each one is armed for."""
        self._paths: dict[str, set[str]] = {}
        self._due: dict[str, str] = {}
        """Keys to arm, each with the node that fired; "" means all of its nodes."""
        self._arming: asyncio.Task[None] | None = None

    def add(self, key: str, changed: Watcher) -> Callable[[], None]:
        """Call `changed` when the key, or the names under it, may have changed.

        Returns a function that ends the watch. Raises `InvalidRequest`.
        """
        identity = object()
        watchers = self._watchers.get(key)
        if watchers is None:
            self._layout.places(key)
            watchers = self._watchers[key] = {}
            self._arm_soon(key)
        watchers[identity] = changed

        def end() -> None:
            left = self._watchers.get(key)
            if left is None or left.pop(identity, None) is None or left:
                return
            del self._watchers[key]
            for path in self._paths.pop(key, ()):
                del self._keys[path]

        return end

    def connected(self, client: ZooKeeperClient) -> None:
        """There is a connection that knows of no watch yet."""
        self._client = client
        for key in self._watchers:
            self._arm_soon(key)

    def disconnected(self) -> None:
        """What was armed is gone with the connection."""
        self._client = None
        self._due.clear()
        if self._arming is not None:
            self._arming.cancel()
            self._arming = None

    def on_event(self, path: str) -> None:
        """A node's watch has fired, and is no more."""
        key = self._keys.get(path)
        if key is not None:
            self._arm_soon(key, path)

    def close(self) -> None:
        """End every watch."""
        self.disconnected()
        self._watchers.clear()
        self._keys.clear()
        self._paths.clear()

    def _arm_soon(self, key: str, path: str = "") -> None:
        if self._client is None:
            return
        # Of two nodes that have fired, only one can be noted: then all are armed.
        self._due[key] = path if self._due.get(key, path) == path else ""
        if self._arming is None:
            self._arming = self._loop.create_task(self._arm_due(self._client))

    async def _arm_due(self, client: ZooKeeperClient) -> None:
        while self._due:
            keys = list(self._due)[:_ARMED_AT_ONCE]
            fired = [self._due.pop(key) for key in keys]
            try:
                await asyncio.gather(*map(partial(self._arm, client), keys, fired))
            except ConnectionLost:
                # The next connection arms everything.
                break
            except EngineError:
                self._due.update(dict.fromkeys(keys, ""))
                await asyncio.sleep(_RETRY_S)
                continue
            for key in keys:
                for changed in list(self._watchers.get(key, {}).values()):
                    self._loop.call_soon(changed)
        self._arming = None

    async def _arm(self, client: ZooKeeperClient, key: str, fired: str) -> None:
        if key not in self._watchers:
            return
        top = self._layout.folder(key)
        if key in NUMBERED and fired.startswith(f"{top}/"):
            # One of its folders: the others are still armed.
            await self._arm_folder(client, key, fired)
            return
        # What programs of earlier versions still make elsewhere is not watched.
        places = self._layout.places(key)
        places = places[:1] if self._layout.spread is Spread.FOLDERS else places
        for path in places:
            self._remember(key, path)
        await asyncio.gather(
            *(client.exists(path, watch=True) for path in places),
            self._arm_folder(client, key, top),
        )

    async def _arm_folder(self, client: ZooKeeperClient, key: str, folder: str) -> None:
        """Watch the names in a folder, or, while there is none, for it to come."""
        self._remember(key, folder)
        while await client.exists(folder, watch=True):
            with contextlib.suppress(NotFound):
                names = await client.children(folder, watch=True)
                if key in NUMBERED and folder == self._layout.folder(key):
                    numbers = self._layout.numbered_folders(names)
                    inside = [self._layout.numbered_folder(key, number) for number in numbers]
                    await asyncio.gather(*(self._arm_folder(client, key, path) for path in inside))
                return

    def _remember(self, key: str, path: str) -> None:
        """Note for which key a node is armed, unless the last watch of it has ended meanwhile."""
        if key in self._watchers:
            self._keys[path] = key
            self._paths.setdefault(key, set()).add(path)
