"""Planted faults: each rule of the protocol and the storage, switched off, must turn a test red.

`python -m tests.mutants` plants every one of them; `tests/mutants/README.md` says how to add one.
"""
