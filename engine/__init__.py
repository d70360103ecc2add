"""The ledger layer: append-only ledgers, replicated on bookies, in one process or many.

async with engine.open("./data") as client:
    writer = await client.create_ledger()
    entry_id = await writer.append(b"moo")

async with engine.connect("herdbook://zookeeper-1:2181,zookeeper-2:2181/prod") as client: ...
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine import errors, limits
    from engine.cluster import Engine, open
    from engine.connecting import Connection, connect
    from engine.errors import EngineError
    from engine.ledger.client import LedgerClient
    from engine.ledger.reader import LedgerReader
    from engine.ledger.settings import ClientSettings
    from engine.ledger.writer import LedgerWriter
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.run import NO_ENTRY, Entry
    from engine.transport.security import Security

__all__ = [
    "NO_ENTRY",
    "ClientSettings",
    "Connection",
    "Engine",
    "EngineError",
    "Entry",
    "LedgerClient",
    "LedgerReader",
    "LedgerWriter",
    "Security",
    "ZooKeeperSettings",
    "connect",
    "errors",
    "limits",
    "open",
]

# Hidden from those who check types: to them each unknown name would be one that there is.
if not TYPE_CHECKING:
    _PLACES = {
        "cluster": (
            "Engine",
            "open",
        ),
        "connecting": (
            "Connection",
            "connect",
        ),
        "errors": ("EngineError",),
        "ledger.client": ("LedgerClient",),
        "ledger.reader": ("LedgerReader",),
        "ledger.settings": ("ClientSettings",),
        "ledger.writer": ("LedgerWriter",),
        "metadata.zookeeper_settings": ("ZooKeeperSettings",),
        "run": (
            "NO_ENTRY",
            "Entry",
        ),
        "transport.security": ("Security",),
    }

    def __getattr__(name):
        """Import what a name leads to with its first use: most processes need a few of them."""
        from importlib import import_module

        if name in ("errors", "limits"):
            return import_module(f"engine.{name}")
        for place, names in _PLACES.items():
            if name in names:
                found = getattr(import_module(f"engine.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
