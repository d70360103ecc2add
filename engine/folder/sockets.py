"""Where the owner of a folder listens: a Unix socket in a folder of the user's own.

Invariants:
- The socket's folder belongs to the user and nobody else can enter it; the socket has mode 0600
  before anybody can connect.
- A socket's path never has more than `SOCKET_PATH_BYTES_MAX` bytes.
- Each owner has a path of its own, so a socket left behind by a dead one is never in the way.
"""

import errno
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from engine.errors import FolderError
from engine.transport.address import SOCKET_PATH_BYTES_MAX, UNIX

_PREFIX: Final = "herdbook-"
_SUFFIX: Final = ".sock"
_BACKLOG: Final = 64
_SWEEP_AGE_S: Final = 60


def address_of(nonce: str) -> str:
    """The address that `listen` listens at. Raises `FolderError`."""
    return f"{UNIX}{runtime_folder(_name(nonce)) / _name(nonce)}"


def listen(nonce: str) -> tuple[socket.socket, str]:
    """A listening socket and its address. Raises `FolderError`."""
    path = Path(address_of(nonce).removeprefix(UNIX))
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.setblocking(False)
        end.bind(str(path))
        path.chmod(0o600)
        end.listen(_BACKLOG)
    except OSError as error:
        end.close()
        raise FolderError(f"cannot listen at {path}: {error.strerror}") from error
    _sweep(path)
    return end, f"{UNIX}{path}"


def own_process() -> int:
    """The number of this process, for people who look into the lock file."""
    return os.getpid()


def remove(address: str) -> None:
    """Remove the socket of an owner that is gone, if it is one of ours."""
    path = Path(address.removeprefix(UNIX))
    if path.name.startswith(_PREFIX) and path.name.endswith(_SUFFIX):
        try:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        except OSError:
            return


def runtime_folder(name: str) -> Path:
    """The user's own folder for sockets, with room for `name` in a socket's path.

    Raises `FolderError` if there is none to be had.
    """
    reasons: list[str] = []
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [(Path(runtime), False)] if runtime else []
    private = f"{_PREFIX}{os.geteuid()}"
    candidates += [(Path(root) / private, True) for root in (tempfile.gettempdir(), "/tmp")]
    for folder, may_make in candidates:
        reason = _why_not(folder, name, may_make)
        if reason is None:
            return folder
        reasons.append(f"{folder} {reason}")
    raise FolderError(
        f"no folder for a socket: {'; '.join(reasons)}. Set XDG_RUNTIME_DIR to a short folder of "
        "yours with mode 0700"
    )


def _sweep(own: Path) -> None:
    """Remove sockets that nobody listens at any more: their folders may never be opened again.

    A young one may belong to an owner that is just about to listen.
    """
    youngest = own.lstat().st_mtime - _SWEEP_AGE_S
    for path in own.parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        try:
            if path.lstat().st_mtime < youngest and not _answers(path):
                path.unlink()
        except OSError:
            continue


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.setblocking(False)
        return end.connect_ex(str(path)) != errno.ECONNREFUSED


def _why_not(folder: Path, name: str, may_make: bool) -> str | None:
    if len(os.fsencode(folder / name)) > SOCKET_PATH_BYTES_MAX:
        return "is too long a path for a socket"
    try:
        if may_make:
            folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    if not stat.S_ISDIR(state.st_mode):
        return "is not a folder"
    if state.st_uid != os.geteuid() or state.st_mode & 0o077:
        return "is open to others"
    return None


def _name(nonce: str) -> str:
    return f"{_PREFIX}{nonce[:16]}{_SUFFIX}"
