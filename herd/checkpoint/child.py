"""The leader's talk with the child that builds a checkpoint's pages, over its standard streams.

    leader    an `Order`, then for each question the answer: the blobs of a page, or nil
    child     questions, each a `Page`, and at the end a blob: the manifest

Each is a size (`u64`) and, but for the manifest, MessagePack.

Invariants:
- The child asks one thing at a time, so neither waits for the other to read.
- A page that cannot be read is answered with nil: the child writes it whole.
"""

import asyncio
import os
import struct
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import BinaryIO, Final

import msgspec

from engine.errors import CannotRead, NotFound
from herd.checkpoint.manifest import Manifest, Page, encode_manifest
from herd.checkpoint.order import Order

Blobs = Sequence[bytes] | None
ReadPage = Callable[[Page], Awaitable[Sequence[bytes]]]
Builder = Callable[[Order], Generator[Page, Blobs, Manifest]]
_SIZE: Final = struct.Struct(">QB")
_PAGE, _MANIFEST = 0, 1
_encode: Final = msgspec.msgpack.Encoder().encode


async def answer(page: Page, read: ReadPage) -> Blobs:
    """What a child is told of a page."""
    try:
        return await read(page)
    except (NotFound, CannotRead):
        return None


async def run_child(order: Order, read: ReadPage) -> bytes:
    """Build an order's pages in a process of its own; returns the manifest.

    Raises `CannotRead` if the child fails, and what reading pages raises.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "herd.checkpoint.building",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert child.stderr is not None
    wrong = asyncio.ensure_future(child.stderr.read())
    try:
        said = await _talk(child, order, read)
        await child.wait()
        last = (await wrong).decode(errors="replace").strip().splitlines()[-1:]
    except BaseException:
        child.kill()
        await child.wait()
        wrong.cancel()
        raise
    if said is None or child.returncode:
        raise CannotRead(f"a checkpoint's pages could not be built: {' '.join(last)}")
    return said


async def _talk(child: asyncio.subprocess.Process, order: Order, read: ReadPage) -> bytes | None:
    """Answer what the child asks; returns its manifest, or None if it ends before."""
    assert child.stdin is not None and child.stdout is not None
    try:
        await _tell(child.stdin, order)
        while True:
            size_bytes, kind = _SIZE.unpack(await child.stdout.readexactly(_SIZE.size))
            said = await child.stdout.readexactly(size_bytes)
            if kind == _MANIFEST:
                return said
            page = msgspec.msgpack.decode(said, type=Page)
            await _tell(child.stdin, await answer(page, read))
    except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
        return None


async def _tell(stream: asyncio.StreamWriter, told: Order | Blobs) -> None:
    body = _encode(told)
    stream.write(_SIZE.pack(len(body), _PAGE))
    stream.write(body)
    await stream.drain()


# In the child


def serve(build: Builder) -> None:
    """Carry out the order on standard input."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    building = build(msgspec.msgpack.decode(_heard(source), type=Order))
    try:
        page = next(building)
        while True:
            _say(target, _PAGE, _encode(page))
            page = building.send(msgspec.msgpack.decode(_heard(source), type=list[bytes] | None))
    except StopIteration as ended:
        _say(target, _MANIFEST, encode_manifest(ended.value))


def _heard(source: BinaryIO) -> bytes:
    size_bytes, _ = _SIZE.unpack(source.read(_SIZE.size))
    return source.read(size_bytes)


def _say(target: BinaryIO, kind: int, body: bytes) -> None:
    target.write(_SIZE.pack(len(body), kind))
    target.write(body)
    target.flush()
