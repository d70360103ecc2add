"""The ledger layer: append-only ledgers, replicated on bookies, in one process or many.

async with engine.open("./data") as client:
    writer = await client.create_ledger()
    entry_id = await writer.append(b"moo")

async with engine.connect("herdbook://zookeeper-1:2181,zookeeper-2:2181/prod") as client: ...
"""

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
