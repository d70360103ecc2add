"""A PostgreSQL of our own for one scenario, on a temporary folder, if the machine has one.

Invariants:
- It runs as a user without privileges, listens on a socket in its folder alone, and is ended and
  removed with the scenario.
- Its settings are its own defaults, but for room for the connections; fsync stays on.
"""

import importlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

Connect = Callable[[], Any]
_USER: Final = "herd"
_INSTALLED: Final = Path("/usr/lib/postgresql")
_SETTINGS: Final = ("fsync=on", "synchronous_commit=on", "max_connections=100")
_READY_S: Final = 30.0
_POLL_S: Final = 0.05


def programs(search: str | None = None, installed: Path = _INSTALLED) -> Path | None:
    """The folder of `initdb` and `postgres`: of the search path, else the newest installed."""
    found = shutil.which("initdb", path=search)
    if found is not None and shutil.which("postgres", path=search) is not None:
        # A link would leave its own folder's other files out of sight.
        return Path(found).resolve().parent
    versions = [path for path in installed.glob("*/bin") if (path / "initdb").exists()]
    versions.sort(key=lambda path: [int(part) for part in path.parent.name.split(".")])
    return versions[-1] if versions else None


@contextmanager
def postgres(folder: Path) -> Iterator[Connect | None]:
    """What connects to a fresh server whose files are in a new folder in `folder`, or None."""
    where, user = programs(), _unprivileged()
    found = where is not None and importlib.util.find_spec("psycopg") is not None
    if where is None or not found or not (user is None or _open_to_all(folder)):
        yield None
        return
    psycopg = importlib.import_module("psycopg")
    root = Path(tempfile.mkdtemp(prefix="herdbook-postgres-", dir=folder))
    if user is not None:
        shutil.chown(root, user)
    server: subprocess.Popen[bytes] | None = None
    try:
        server = _start(where, root, user)

        def connect() -> Any:
            return psycopg.connect(host=str(root), user=_USER, dbname="postgres", autocommit=True)

        _until_ready(server, connect)
        yield connect
    finally:
        if server is not None:
            # The quick end: it does not wait for those who are connected.
            server.send_signal(signal.SIGINT)
            server.wait()
        shutil.rmtree(root, ignore_errors=True)


def _unprivileged() -> str | None:
    """Who runs it: PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _open_to_all(folder: Path) -> bool:
    """Whether any user can reach what lies in a folder."""
    whole = folder.resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (whole, *whole.parents))


def _start(where: Path, root: Path, user: str | None) -> "subprocess.Popen[bytes]":
    data = root / "data"
    made = subprocess.run(
        [where / "initdb", "-D", data, "-U", _USER, "--auth=trust", "-E", "UTF8", "--locale=C"],
        user=user,
        cwd=root,
        capture_output=True,
    )
    if made.returncode:
        raise RuntimeError(f"initdb: {made.stderr.decode(errors='replace').strip()}")
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    command = [str(where / "postgres"), "-D", str(data), "-k", str(root)]
    command += ["-c", "listen_addresses=", *settings]
    with (root / "said").open("wb") as said:
        return subprocess.Popen(command, user=user, cwd=root, stdout=said, stderr=said)


def _until_ready(server: "subprocess.Popen[bytes]", connect: Connect) -> None:
    end_s = time.monotonic() + _READY_S
    while True:
        try:
            connect().close()
            return
        except Exception as error:
            if server.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"PostgreSQL did not start: {error}") from error
            time.sleep(_POLL_S)
