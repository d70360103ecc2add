"""Rows written in bulk: staged in ledgers by many processes, then put into a table at once."""
