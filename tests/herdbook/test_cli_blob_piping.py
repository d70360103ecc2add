"""Standard input of `herdbook blob put -`: read as it comes, and let go when nobody wants it."""

import os
import select
import sys
import threading
from typing import Any

import pytest

from herdbook.cli.blob_piping import StandardInput


def test_bytes_come_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        source = StandardInput()
        os.write(theirs, b"moo")
        assert source.read(1_000_000) == b"moo"
        os.write(theirs, b"moo")
        assert source.read(2) == b"mo"
        os.close(theirs)
        assert source.read(10) == b"o" and source.read(10) == b""


def test_who_waits_for_input_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    waits = threading.Event()
    real = select.select

    def told(*arguments: Any) -> Any:
        waits.set()
        return real(*arguments)

    monkeypatch.setattr(select, "select", told)
    errors: list[OSError] = []

    def read() -> None:
        try:
            source.read(10)
        except OSError as error:
            errors.append(error)

    with os.fdopen(ours) as typed, os.fdopen(theirs, "wb"):
        monkeypatch.setattr(sys, "stdin", typed)
        source = StandardInput()
        thread = threading.Thread(target=read)
        thread.start()
        assert waits.wait(10)
        source.close()
        thread.join(10)
        assert not thread.is_alive()
    assert [str(error) for error in errors] == ["standard input was given up"]
