"""The ledger layer: append-only ledgers, replicated on bookies, in one process or many.

async with engine.open("./data") as client:
    writer = await client.create_ledger()
    entry_id = await writer.append(b"moo")
"""

from engine import errors, limits
from engine.cluster import Engine, open
from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.run import NO_ENTRY, Entry

__all__ = [
    "NO_ENTRY",
    "ClientSettings",
    "Engine",
    "EngineError",
    "Entry",
    "LedgerClient",
    "LedgerReader",
    "LedgerWriter",
    "errors",
    "limits",
    "open",
]
