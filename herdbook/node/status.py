"""What a node says of itself: in `node.json` of its folder, and to systemd where that has asked.

Invariants:
- The file is there as long as the node is, and is replaced as a whole; where it cannot be written,
  on a full disk for example, it says what it said before, and the node goes on.
- The file's time is the moment, by the monotonic clock, at which the node's own loop turned last:
  nobody serves, as far as one can tell, below a loop that stands still.
"""

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from engine.bookie.settings import BookieSettings
from engine.errors import InvalidRequest, Unavailable
from engine.ledger.capacity import Capacity, watched
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk, naming
from herdbook.node.settings import NodeSettings
from herdbook.node.supervisor import MemberState

FILE: Final = "node.json"
_CLOCK_S: Final = 1.0
"""A node's time is never this far ahead of the clock that it was read from."""
_SYSTEMD: Final = "NOTIFY_SOCKET"
_logger: Final = logging.getLogger(__name__)


class NodeStatus(msgspec.Struct, frozen=True):
    """A node as it was when something changed last. Empty `url`: it serves a folder.

    A node that gives no sign of life for `silence_ms` milliseconds is silent. `folders` are its
    data folders, `reserve_bytes` is how much of each disk is kept for deletions.
    """

    pid: int
    url: str
    members: dict[str, MemberState]
    silence_ms: int
    folders: list[str] = []
    reserve_bytes: int = 0


class StatusFile:
    """The file of a node that runs in this process; a context manager."""

    def __init__(self, folder: Path, settings: NodeSettings) -> None:
        self._file = folder / FILE
        self._url = settings.url
        self._table = settings.supervisor
        self._folders = [str(folder.absolute()) for folder in settings.data_folders]
        self._reserve_bytes = settings.reserve_bytes

    def write(self, members: dict[str, MemberState]) -> None:
        """Say how it stands, if that can be written."""
        status = NodeStatus(
            os.getpid(),
            self._url,
            members,
            self._table.silence_ms,
            self._folders,
            self._reserve_bytes,
        )
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(status))
            _mark(new)
            new.replace(self._file)
        except OSError as error:
            _logger.warning("%s says what was before: %s", self._file, error)

    async def beat(self) -> None:
        """Give signs of life, for as long as the caller's loop turns."""
        while True:
            with contextlib.suppress(OSError):
                _mark(self._file)
            await asyncio.sleep(self._table.beat_ms / 1000)

    def __enter__(self) -> "StatusFile":
        with naming(self._file.parent):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink()


def read_status(folder: Path) -> NodeStatus:
    """How the node of a folder stands.

    Raises `Unavailable` where none runs, `InvalidRequest` for a file that cannot be read.
    """
    file = folder / FILE
    try:
        status = msgspec.json.decode(file.read_bytes(), type=NodeStatus)
        silent_s = SystemClock().monotonic() - file.stat().st_mtime
    except FileNotFoundError as error:
        raise Unavailable(f"no node runs in {folder.parent}") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError as error:
        raise Unavailable(f"the node in {folder.parent} ended unexpectedly") from error
    except PermissionError:
        # It is another user's, and runs.
        pass
    if silent_s < -_CLOCK_S:
        # The machine has restarted since: this is another process with the same number.
        raise Unavailable(f"the node in {folder.parent} ended unexpectedly")
    if silent_s * 1000 >= status.silence_ms:
        for state in status.members.values():
            state.state, state.error = "silent", f"the loop of process {status.pid} stands still"
    return status


def lack_of_room(status: NodeStatus) -> str:
    """Why the disks of a node's folders have no space for new data now; "" if they have."""
    keeping = BookieSettings().keeping(status.reserve_bytes)
    capacity = Capacity(0)
    for name in status.folders:
        capacity.look(watched(Path(name), SystemDisk(Path(name)), keeping))
    return capacity.lack_on_disks


def was_killed(folder: Path) -> bool:
    """Whether a folder's node, which is not running now, ended unexpectedly."""
    return (folder / FILE).exists()


def _mark(file: Path) -> None:
    """Note in a file's time that the loop turns. It takes no room on a disk that has none."""
    now_s = SystemClock().monotonic()
    os.utime(file, (now_s, now_s))


def tell_systemd(text: str) -> None:
    """One message as sd_notify(3) has it; nothing where nobody listens."""
    path = os.environ.get(_SYSTEMD, "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.sendto(text.encode(), address)
