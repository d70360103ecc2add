"""Files that hold secrets, passwords, tokens and private keys: nobody else may read them.

Invariants:
- Only the file's owner may read it; the group, too, where the file is root's, as mounted secrets of
  Kubernetes are. A pipe is nobody else's.
- A pipe is read once: whoever asks again gets what it said then.
- A file that is named holds something: an empty one is no way to have no secret.
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

    Raises `InvalidRequest` if it cannot be read, is empty, or if others may read it.
    """
    if file is None:
        return b""
    check_closed(file)
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
    """The shared secret in a file, and another one that is accepted, too; b"": there is none.

    A file of text has a secret a line; what is no text is one secret. Raises `InvalidRequest` as
    `secret_in`, and for more than two lines.
    """
    lines = _lines(secret_in(file))
    if len(lines) > _SECRETS_MAX:
        raise InvalidRequest(
            f"{file} has {len(lines)} lines, at most {_SECRETS_MAX} secrets are taken: one a line"
        )
    first, other = (*lines, b"", b"")[:_SECRETS_MAX]
    return first, other


def _lines(content: bytes) -> list[bytes]:
    """The lines of a text that say something; what is no text is one line, whatever is in it."""
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    try:
        text = all(line.decode().isprintable() for line in lines)
    except UnicodeDecodeError:
        text = False
    return lines if text else [content]


def secret_text_in(file: Path | None) -> str:
    """A password or a token in a file; "" without a file. Raises as `secret_in`, and
    `InvalidRequest` for what is no text."""
    try:
        return secret_in(file).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} holds no text") from error


def _quoted(file: Path) -> str:
    return shlex.quote(str(file))
