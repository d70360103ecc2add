"""Herdbook: a replicated ledger, and what is built on it. The door is `herdbook.open(path)`."""

from herdbook.book import AsyncBook, Book, open, open_async

__all__ = ["AsyncBook", "Book", "open", "open_async"]
