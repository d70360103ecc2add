"""The messages between a node and its query processes, over pairs of Unix sockets.

    frame       u8 kind, u8 file descriptors, u64 bytes of the body; the body; the descriptors

A node and its supervisor:

    START       a settings record, once
    FORK        a number and a socket: make a process; SLOW, KILL: the process with a number
    ENDED       an `Ended`, from the supervisor

A node and one process:

    QUERY       a pickled `Question`: written by the node, so safe to unpickle
    PAGES       numbers and sizes of shared pages, with their descriptors, before the QUERY
    NEXT        from the process: a request for the next batch of a stream
    GIVE, END   that batch, or no more batches; WRONG: it cannot be read
    SCHEMA      from the process: the answer's; then BATCH for each of its batches
    FILE        the batches are in this file, where they are large
    DONE        the types of the columns; FAILED: an error of the database

Invariants:
- Messages of a process are never unpickled, and their sizes and rows are checked, because the
  process may be compromised.
"""

import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

(START, FORK, SLOW, KILL, ENDED, QUERY, PAGES, NEXT, GIVE, END, WRONG, SCHEMA, BATCH, FILE) = range(
    14
)
DONE, FAILED = 14, 15
FDS_MAX: Final = 100
"""The most descriptors of one frame; the system allows 253."""
_HEADER: Final = struct.Struct(">BBQ")


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A process that has ended: the `signal` that killed it or 0. It was killed because it held too
    much (`memory`), or because the disk had no more room for its files (`disk`).
    """

    number: int
    signal: int = 0
    memory: bool = False
    disk: bool = False


class PageNames(msgspec.Struct, frozen=True, array_like=True):
    """Shared pages: their schema, numbers and sizes."""

    schema: bytes
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]


class Next(msgspec.Struct, frozen=True, array_like=True):
    """The next batch of the `stream`-th reading of an input."""

    name: str
    stream: int


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The types of an answer's columns. `spent`: the process has grown too much to reuse."""

    names: tuple[str, ...]
    spent: bool = False


class Wrong(msgspec.Struct, frozen=True, array_like=True):
    """An error of the database. `spent` as in `Done`."""

    name: str
    message: str
    hint: str = ""
    place: int | None = None
    spent: bool = False


def send(link: socket.socket, kind: int, body: Any = b"", fds: Sequence[int] = ()) -> None:
    """Send a frame; waits until the socket accepts it. Raises `OSError` if the peer has ended."""
    view = memoryview(body).cast("B") if len(body) else memoryview(b"")
    header = _HEADER.pack(kind, len(fds), view.nbytes)
    if fds:
        sent = socket.send_fds(link, [header, view], list(fds)) - len(header)
    else:
        sent = link.sendmsg([header, view]) - len(header)
    if sent < 0:
        link.sendall(header[sent:])
        sent = 0
    if sent < view.nbytes:
        link.sendall(view[sent:])


def framed(kind: int, body: Any) -> list[Any]:
    """A frame without descriptors, for `send_together`."""
    return [_HEADER.pack(kind, 0, len(body)), body]


def send_together(link: socket.socket, parts: Sequence[Any]) -> None:
    """Send several frames of `framed`, so that the peer wakes up once. Raises as `send`."""
    link.sendall(b"".join(parts))


def receive(
    link: socket.socket, size_bytes_max: int | None = None
) -> tuple[int, bytearray, list[int]] | None:
    """The next frame; None if the peer has ended. Raises `ValueError` if it is too large.

    Nothing is allocated for a frame that is too large, and its descriptors are closed.
    """
    found = _header(link)
    if found is None:
        return None
    (kind, _, size_bytes), fds = found
    if size_bytes_max is not None and size_bytes > size_bytes_max:
        close_all(fds)
        raise ValueError(f"a frame of {size_bytes} bytes")
    body = bytearray(size_bytes)
    view = memoryview(body)
    while view:
        got = link.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return kind, body, fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a frame and are not needed."""
    for fd in fds:
        os.close(fd)


def _header(link: socket.socket) -> tuple[tuple[int, int, int], list[int]] | None:
    try:
        header, fds, _, _ = socket.recv_fds(link, _HEADER.size, FDS_MAX)
        while 0 < len(header) < _HEADER.size:
            more = link.recv(_HEADER.size - len(header))
            if not more:
                return None
            header += more
    except ConnectionError:
        return None
    if not header:
        return None
    kind, count, size_bytes = _HEADER.unpack(header)
    return (kind, count, size_bytes), list(fds)
