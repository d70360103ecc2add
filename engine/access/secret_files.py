"""Files that hold secrets, passwords, tokens and private keys: nobody else may read them.

Invariants:
- Only the file's owner may read it; the group, too, where the file is root's, as mounted secrets of
  Kubernetes are. A pipe is nobody else's.
"""

import os
import shlex
import stat
from pathlib import Path
from typing import Final

from engine.errors import InvalidRequest

_OTHERS: Final = 0o077
_GROUP_READS: Final = 0o040
_ROOT: Final = 0


def check_closed(file: Path) -> None:
    """Raise `InvalidRequest` for a file of a secret that others may read, or that is not there."""
    try:
        why = why_open(file)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    if why:
        raise InvalidRequest(why)


def why_open(file: Path) -> str:
    """Why a file cannot be taken for a secret, and what mends that; "" if it can.

    Raises `OSError`.
    """
    found = os.stat(file)
    others = found.st_mode & _OTHERS
    if found.st_uid == _ROOT:
        others &= ~_GROUP_READS
    if not others or not stat.S_ISREG(found.st_mode):
        return ""
    mode = stat.S_IMODE(found.st_mode)
    return f"others may read {file}, which is secret (mode {mode:04o}): chmod 600 {_quoted(file)}"


def secret_in(file: Path | None) -> bytes:
    """A secret in a file, without the white space that editors put behind it; b"" without a file.

    Raises `InvalidRequest` if it cannot be read, or if others may read it.
    """
    if file is None:
        return b""
    check_closed(file)
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error


def secret_text_in(file: Path | None) -> str:
    """A password or a token in a file; "" without a file. Raises as `secret_in`, and
    `InvalidRequest` for what is no text."""
    try:
        return secret_in(file).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} holds no text") from error


def _quoted(file: Path) -> str:
    return shlex.quote(str(file))
