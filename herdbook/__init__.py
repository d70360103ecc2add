"""Herdbook: a replicated ledger, and what is built on it.

The doors are `herdbook.open(path)` for a folder and `herdbook.connect(url)` for a cluster.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herdbook.book import AsyncBook, Book, open, open_async
    from herdbook.connecting import (
        AsyncCluster,
        Cluster,
        connect,
        connect_async,
        read_secrets_again,
    )

__all__ = [
    "AsyncBook",
    "AsyncCluster",
    "Book",
    "Cluster",
    "connect",
    "connect_async",
    "open",
    "open_async",
    "read_secrets_again",
]

# Hidden from those who check types: to them each unknown name would be one that there is.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Import what a door leads to with its first use: a command needs a part of it only."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        of_cluster = name.endswith("Cluster") or name.startswith(("connect", "read"))
        where = "connecting" if of_cluster else "book"
        return getattr(import_module(f"herdbook.{where}"), name)

    def __dir__():
        return sorted({*globals(), *__all__})
