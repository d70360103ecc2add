"""Files of secrets, passwords, tokens and private keys: no other user may read them.

Invariants:
- Only the file's owner may read it. If the owner is root, the group may read it, too: Kubernetes
  mounts secrets that way. The mode of a pipe is not checked.
- A pipe is read once: later calls return the content that was read then.
- A named file must not be empty: an empty file does not mean "no secret".
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
_SECRETS_MAX: Final = 2
_pipes: Final[dict[tuple[Path, int, int], bytes]] = {}


def check_private(file: Path) -> None:
    """Raise `InvalidRequest` if other users may read a file with a secret, or it is missing."""
    try:
        why = why_not_private(file)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    if why:
        raise InvalidRequest(why)


def why_not_private(file: Path) -> str:
    """Why a file cannot be used for a secret, and how to correct that; "" if it can.

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
    """The secret in a file, without white space around it; b"" without a file.

    Raises `InvalidRequest` if it cannot be read, is empty, or if others may read it.
    """
    if file is None:
        return b""
    check_private(file)
    try:
        found = os.stat(file)
        if stat.S_ISREG(found.st_mode):
            content = file.read_bytes().strip()
        else:
            pipe = (file, found.st_dev, found.st_ino)
            content = _pipes.get(pipe) or _pipes.setdefault(pipe, file.read_bytes().strip())
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    if not content:
        raise InvalidRequest(f"{file} is empty: write the secret into it")
    return content


def shared_secrets_in(file: Path | None) -> tuple[bytes, bytes]:
    """The shared secret in a file, and a second one that is also accepted; b"": there is none.

    A text file has one secret per line; a file that is not text is one secret. Raises
    `InvalidRequest` as `secret_in`, and for more than two lines.
    """
    lines = _lines(secret_in(file))
    if len(lines) > _SECRETS_MAX:
        raise InvalidRequest(
            f"{file} has {len(lines)} lines; at most {_SECRETS_MAX} are allowed, one secret a line"
        )
    first, other = (*lines, b"", b"")[:_SECRETS_MAX]
    return first, other


def _lines(content: bytes) -> list[bytes]:
    """The lines of a text that are not blank; content that is not text counts as one line."""
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    try:
        text = all(line.decode().isprintable() for line in lines)
    except UnicodeDecodeError:
        text = False
    return lines if text else [content]


def secret_text_in(file: Path | None) -> str:
    """The password or token in a file; "" without a file.

    Raises `InvalidRequest` as `secret_in`, and if the file is not text.
    """
    try:
        return secret_in(file).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not a text file") from error


def _quoted(file: Path) -> str:
    return shlex.quote(str(file))
