"""A real ZooKeeper server as a child process: for development, tests and small sites.

Its jars come with PySpark; nothing is downloaded. Production uses its own ensemble.

Invariants:
- `start` returns when the server answers, or raises and leaves no process behind.
- The server is ended by its process id, and by nothing broader.
- It listens on the loopback address unless told otherwise, and has no admin web server.
"""

import contextlib
import errno
import fcntl
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from engine.errors import EngineError, Unavailable
from engine.folder.modes import ensure_private
from herdbook.node.ending_with import ending_with

TICK_MS: Final = 500
SESSION_TIMEOUT_MAX_MS: Final = 60_000
JARS_VARIABLE: Final = "HERDBOOK_ZOOKEEPER_JARS"
_JAVA_MAJOR_MIN: Final = 17
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_DYING_S: Final = 2.0
"""How long the system may take to end a server that was killed together with its parent."""
_POLL_S: Final = 0.05
_PORTS_TRIED: Final = 5
_OWN_PORTS: Final = (10_000, 32_000)
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Beside ZooKeeper's own jars only what it loads: PySpark has 280, and each one costs start-up time.
_NEEDED: Final = (
    "zookeeper-",
    "audience-annotations-",
    "commons-cli-",
    "commons-io-",
    "metrics-core-",
    "netty-",
    "slf4j-api-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "snappy-java-",
)
_LOGGING: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p [%t] %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class ZooKeeperMissing(EngineError):
    """Java or ZooKeeper's jars are not on this machine. Install what the message names."""


class ZooKeeperFailed(Unavailable):
    """The server ended, or did not answer in time. The end of its log is in the message."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The servers that replicate each other, each "host:port for peers:port for elections"; this
    one is the member of that number, counted from 1."""

    members: tuple[str, ...]
    number: int


class ZooKeeperServer:
    """A server that keeps its data in a folder, and its log there too; alone, or in an ensemble."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        ensemble: Ensemble | None = None,
        ends_with_parent: bool = False,
        heap_mib: int = 256,
    ) -> None:
        """`heap_mib` is how much memory Java may use for the data.

        `ends_with_parent`, for a process of one thread on Linux: no `kill -9` of this process
        leaves the server behind."""
        self._ends_with_parent = ends_with_parent and sys.platform == "linux"
        self.folder = folder.absolute()
        self.host = host
        self._ensemble = ensemble
        self._heap_mib = heap_mib
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """Where clients connect: "host:port"."""
        return f"{self._reached}:{self._port}"

    @property
    def port(self) -> int:
        """The port; 0 until the first start, if none was named."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server. Raises `ZooKeeperFailed` if it does not run."""
        if self._process is None or not self.runs:
            raise ZooKeeperFailed("the ZooKeeper server does not run")
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the server was started here and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "zookeeper.log"

    def start(self, *, wait: bool = True) -> None:
        """Start, and return when the server answers; a second call while it runs does nothing.

        A member of an ensemble answers when a majority runs: `wait=False` returns before that.
        Raises `ZooKeeperMissing`, `ZooKeeperFailed`, `OSError`.
        """
        if self.runs:
            return
        command = _command(find_java(), find_jars(), self.folder, self._heap_mib)
        chosen = self._port
        for attempt in range(_PORTS_TRIED):
            self._port = free_port(self.host, chosen)
            try:
                self._launch(command)
                if wait:
                    self.wait_until_it_serves()
                return
            except ZooKeeperFailed:
                # A free port may be taken by another process before the server listens on it.
                if chosen or attempt + 1 == _PORTS_TRIED or _is_free(self.host, self._port):
                    self._port = chosen
                    raise

    def _launch(self, command: list[str]) -> None:
        """Start the process."""
        with self._locked() as lock, self.log.open("ab") as log:
            self._write_settings()
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The server holds the lock as long as it lives, whoever started it.
                pass_fds=(lock,),
                preexec_fn=ending_with(os.getpid()) if self._ends_with_parent else None,
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file whose lock says that a server runs here. Raises `ZooKeeperFailed`."""
        ensure_private(self.folder)
        deadline = time.monotonic() + _DYING_S
        with (self.folder / "lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise ZooKeeperFailed(
                            f"another server runs in {self.folder}: stop that one first"
                        ) from error
                time.sleep(_POLL_S)
            yield file.fileno()

    def wait_until_it_serves(self) -> None:
        """Return when the server answers. Raises `ZooKeeperFailed`, and ends it, if it does not."""
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        try:
            while not _serves(self._reached, self._port):
                if self._process.poll() is not None:
                    raise ZooKeeperFailed(f"the ZooKeeper server ended: {self._last_words()}")
                if time.monotonic() > deadline:
                    raise ZooKeeperFailed(f"the ZooKeeper server is silent: {self._last_words()}")
                time.sleep(_POLL_S)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the server; may be called twice. What it has acknowledged is on disk."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the server ends by itself; returns its exit status.

        An exception that a signal handler raises ends the wait within 50 ms.
        """
        assert self._process is not None
        # With a time-out `Popen` waits in short steps. Without one it waits in a single system
        # call, and Python would run the handler of a signal that came just before it only after it.
        return self._process.wait(threading.TIMEOUT_MAX)

    def __enter__(self) -> "ZooKeeperServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _reached(self) -> str:
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        # A paused process hears of its end only when it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write_settings(self) -> None:
        ensure_private(self.folder)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        settings: dict[str, object] = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": SESSION_TIMEOUT_MAX_MS,
            "dataDir": self.folder / "data",
            "clientPort": self._port,
            "clientPortAddress": self.host,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        if self._ensemble is not None:
            members = enumerate(self._ensemble.members, 1)
            settings |= {"initLimit": 20, "syncLimit": 10}
            settings |= {f"server.{number}": member for number, member in members}
            (self.folder / "data").mkdir(mode=0o700, exist_ok=True)
            (self.folder / "data" / "myid").write_text(f"{self._ensemble.number}\n")
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.folder / "zoo.cfg").write_text("".join(lines))

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        lines = [line for line in lines if not line.startswith("\tat ")]
        return " | ".join(lines[-5:])[-1000:] or "its log is empty"


def find_java() -> str:
    """The java of JAVA_HOME, or the one on PATH. Raises `ZooKeeperMissing`."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    advice = "ZooKeeper needs Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)"
    if java is None:
        raise ZooKeeperMissing(f"{advice}; none was found in JAVA_HOME or on PATH")
    major = _java_major(Path(java))
    if major < _JAVA_MAJOR_MIN:
        raise ZooKeeperMissing(f"{advice}; {java} is version {major}")
    return java


def find_jars() -> list[Path]:
    """The jars of a ZooKeeper server: PySpark's, or those in the folder that
    HERDBOOK_ZOOKEEPER_JARS names. Raises `ZooKeeperMissing`."""
    named = os.environ.get(JARS_VARIABLE)
    if named:
        folder = Path(named)
    else:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ZooKeeperMissing(
                "ZooKeeper's jars come with PySpark: install the extra herdbook[spark], "
                f"or name a folder of jars in {JARS_VARIABLE}"
            )
        folder = Path(spec.origin).parent / "jars"
    jars = sorted(path for path in folder.glob("*.jar") if path.name.startswith(_NEEDED))
    if not any(path.name.startswith("zookeeper-") for path in jars):
        raise ZooKeeperMissing(f"there is no ZooKeeper among the jars in {folder}")
    return jars


def _java_major(java: Path) -> int:
    """The major version: from the file beside the binary, which costs nothing, or by asking."""
    release = java.resolve().parent.parent / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'JAVA_VERSION="(\d+)', text)
    if found is None:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        found = re.search(r'version "(\d+)', asked.stderr)
    return int(found.group(1)) if found is not None else 0


def _command(java: str, jars: list[Path], folder: Path, heap_mib: int) -> list[str]:
    return [
        java,
        f"-Xmx{heap_mib}m",
        "-XX:+UseSerialGC",
        # Short runs gain from a quick start more than from the best code.
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-Dlog4j2.disable.jmx=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        # In KiB; a log file of 64 MiB at once is too much for a test.
        "-Dzookeeper.preAllocSize=4096",
        "-cp",
        os.pathsep.join(map(str, jars)),
        _MAIN_CLASS,
        str(folder / "zoo.cfg"),
    ]


def free_port(host: str, wanted: int = 0) -> int:
    """The wanted port, or any free one for 0. Raises `ZooKeeperFailed` if somebody listens there.

    Asked before the start: another server that answers there must not be taken for this one. A
    free one is below those that the system gives to outgoing connections, so that none of these
    takes it while the server is down.
    """
    for _ in range(_PORTS_TRIED):
        port = wanted or random.randrange(*_OWN_PORTS)
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            refusal = error
    why = f"cannot listen on {host}:{port}: {refusal}"
    if refusal.errno == errno.EADDRINUSE:
        why = f"{host}:{port} is in use: name another port, herdbook zookeeper by --port"
    raise ZooKeeperFailed(why) from refusal


def _is_free(host: str, port: int) -> bool:
    try:
        free_port(host, port)
    except ZooKeeperFailed:
        return False
    return True


def _serves(host: str, port: int) -> bool:
    """Whether a server answers there and is ready for clients."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0) as asking:
        asking.settimeout(1.0)
        asking.sendall(b"srvr")
        return asking.recv(4096).startswith(b"Zookeeper version")
    return False
