"""A program is started on a folder that a newer version wrote: it refuses, and changes nothing.

The newer version is this one with a format's number raised by one.
"""

import asyncio
import hashlib
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import herdbook
from engine.errors import EngineError
from engine.metadata.majors import encode_major
from herd.errors import Error
from herdbook.node.here import is_wrong
from herdbook.node.reading import gather
from herdbook.node.refusals import refusals_of
from herdbook.node.serving import serve_node

ANYWHERE: Final = dict.fromkeys(("http.listen", "broker.listen", "broker.grpc"), "127.0.0.1:0")
WHAT_TO_DO: Final = "a newer version of Herdbook wrote it, start that one"


class Format(NamedTuple):
    """Where a format's number stands, what the error calls it, and whether `--check` sees it."""

    module: str
    name: str
    words: str
    checked: bool = True
    started: bool = False
    """The bookies start before anybody looks at it: what they wrote is theirs."""


FORMATS: Final = (
    Format("engine.metadata.facts_format", "FORMAT_MAJOR", "the metadata log has format 2"),
    Format("engine.bookie.folder", "FORMAT_MAJOR", "the identity of the bookie has format 2"),
    Format("engine.bookie.segment", "FORMAT_MAJOR", "segment 1 of the journal has format 2"),
    Format("engine.bookie.index_rocks", "_FORMAT", "has format 3", checked=False),
    Format("engine.state.rocks", "FORMAT_MAJOR", "has format 2", checked=False, started=True),
    Format("engine.log.log_list", "FORMAT_MAJOR", "the list of a log", checked=False, started=True),
)


async def make(folder: Path, raised: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store as a newer version makes it."""
    with monkeypatch.context() as newer:
        module = importlib.import_module(raised.module)
        number = getattr(module, raised.name)
        newer.setattr(module, raised.name, b"3" if number == b"2" else number + 1)
        if raised.module == "engine.log.log_list":
            # A list that names no leader has the first format, so that older versions read it.
            newest = module.FORMAT_MAJOR
            newer.setattr(module, "encode_major", lambda value, _: encode_major(value, newest))
        async with herdbook.open_async(folder) as book:
            writer = await book.ledgers.create_ledger()
            await writer.append(b"moo")
            await writer.close()
            async with await book.sql(autocommit=True) as connection:
                await connection.execute("CREATE TABLE cow (id BIGINT PRIMARY KEY)")


def contents(folder: Path) -> dict[str, str]:
    """All files that hold what was stored, by name: neither a node's own, nor RocksDB's log."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".node" not in path.parts)
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "index" not in path.parts and path.name != "lock"
    }


@pytest.mark.parametrize("raised", FORMATS, ids=lambda each: each.module)
async def test_what_a_newer_version_wrote_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, raised: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    await make(folder, raised, monkeypatch)
    before = contents(folder)
    settings, _ = gather(None, {}, {"data": str(folder), **ANYWHERE})
    with pytest.raises((EngineError, Error)) as refused:
        await serve_node(settings, lambda line: None)
    said = str(refused.value)
    assert raised.words in said and WHAT_TO_DO in said and "\n" not in said
    assert is_wrong(refused.value), "a supervisor does not try it again"
    assert raised.started or contents(folder) == before, "nothing was written"
    told = refusals_of(settings).errors
    assert bool(told) is raised.checked and all(said in line for line in told)


async def test_the_newer_version_goes_on_with_what_the_older_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, raised = tmp_path / "data", FORMATS[0]
    await make(folder, raised, monkeypatch)
    words = [f"{key}={value}" for key, value in ANYWHERE.items()]
    command = [sys.executable, "-m", "herdbook", "serve", "--data", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *command, *(each for word in words for each in ("--set", word)), stderr=subprocess.PIPE
    )
    _, said = await process.communicate()
    [line] = said.decode().splitlines()
    assert process.returncode == 1 and raised.words in line and WHAT_TO_DO in line
    with monkeypatch.context() as newer:
        newer.setattr(f"{raised.module}.{raised.name}", 2)
        async with herdbook.open_async(folder) as book:
            assert (await book.table("cow")).name == "cow"
