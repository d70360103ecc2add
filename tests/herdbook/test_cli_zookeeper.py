"""`herdbook zookeeper` and the server that it runs."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from herdbook.zookeeper_server import (
    JARS_VARIABLE,
    ZooKeeperFailed,
    ZooKeeperMissing,
    ZooKeeperServer,
    find_jars,
    find_java,
)


def test_a_second_server_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    first, second = ZooKeeperServer(tmp_path / "zk"), ZooKeeperServer(tmp_path / "zk")
    first.start()
    try:
        said = (tmp_path / "zk" / "zoo.cfg").read_text()
        with pytest.raises(ZooKeeperFailed, match="another server runs in"):
            second.start()
        assert (tmp_path / "zk" / "zoo.cfg").read_text() == said
        assert "Mode: standalone" in ask(first.hosts)
        first.kill()
        second.start()
        assert "Mode: standalone" in ask(second.hosts)
    finally:
        first.stop()
        second.stop()


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "herdbook", "zookeeper", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def ask(address: str) -> str:
    host, _, port = address.strip().rpartition(":")
    with socket.create_connection((host, int(port)), 10) as wire:
        wire.sendall(b"srvr")
        return wire.recv(4096).decode()


def refused(address: str) -> bool:
    try:
        ask(address)
    except ConnectionError:
        return True
    return False


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_the_command_serves_and_ends_its_server_when_it_is_told_to(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "zk"), "--port", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        assert ask(address).startswith("Zookeeper version: 3.")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert refused(address)
    assert (tmp_path / "zk" / "data" / "version-2").is_dir()


def test_a_signal_that_comes_just_before_the_wait_for_the_server_ends_it(tmp_path: Path) -> None:
    class Told(BaseException):
        pass

    def tell(number: int, frame: object) -> None:
        raise Told

    before = signal.signal(signal.SIGUSR1, tell)
    try:
        with ZooKeeperServer(tmp_path) as server, ThreadPoolExecutor(1) as pool:
            heard = pool.submit(signal_once_it_waits, threading.get_native_id(), server.pid)
            with pytest.raises(Told):
                server.wait()
            assert heard.result()
    finally:
        signal.signal(signal.SIGUSR1, before)


def signal_once_it_waits(waiting: int, server: int) -> bool:
    """Send a signal to this thread while the main thread waits in a system call. The call is not
    interrupted, as if the signal had come just before it. Returns whether the main thread stopped
    waiting within 5 s. If not, the server is killed, so that the wait ends."""
    main = threading.main_thread().ident
    assert main is not None
    deadline_s = time.monotonic() + 20
    while not in_a_wait(sys._current_frames()[main]) or not sleeps(waiting):
        assert time.monotonic() < deadline_s, "it does not wait"
    signal.raise_signal(signal.SIGUSR1)
    deadline_s = time.monotonic() + 5
    while in_a_wait(sys._current_frames()[main]):
        if time.monotonic() > deadline_s:
            os.kill(server, signal.SIGKILL)
            return False
    return True


def in_a_wait(frame: FrameType) -> bool:
    return frame.f_code.co_filename == subprocess.__file__


def sleeps(thread: int) -> bool:
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def test_the_command_ends_with_its_server(tmp_path: Path) -> None:
    with running("--data", str(tmp_path), "--port", "0") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        (server,) = children_of(process.pid)
        os.kill(server, signal.SIGKILL)
        assert process.wait(20) == 1
        assert "ended by itself" in process.stderr.read()


def test_a_port_that_is_taken_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = ZooKeeperServer(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(
            ZooKeeperFailed, match="is in use: name another port, herdbook zookeeper by --port"
        ):
            server.start()
        with pytest.raises(ZooKeeperFailed, match="does not run"):
            _ = server.pid


def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    server = ZooKeeperServer(tmp_path)
    with pytest.raises(ZooKeeperFailed, match=r"ended: .*Unable to create data directory"):
        server.start()
    with pytest.raises(ZooKeeperFailed, match="does not run"):
        _ = server.pid


def test_without_java_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ZooKeeperMissing, match="apt-get install openjdk-17-jre-headless"):
        find_java()


@pytest.mark.parametrize("knows_its_release", [True, False])
def test_a_java_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_its_release: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    if knows_its_release:
        (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperMissing, match="is version 11"):
        find_java()


def test_jars_are_sparks_or_those_of_a_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    before = set(sys.modules)
    names = [path.name for path in find_jars()]
    assert any(name.startswith("zookeeper-3.") for name in names)
    assert not any(name.startswith("spark") for name in names)
    assert "pyspark" not in set(sys.modules) - before
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ZooKeeperMissing, match="no ZooKeeper among the jars"):
        find_jars()
    (tmp_path / "zookeeper-3.9.5.jar").touch()
    assert find_jars() == [tmp_path / "zookeeper-3.9.5.jar"]


def test_a_command_that_is_killed_leaves_no_server_on_its_port(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "zk"), "--port", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert ask(address).startswith("Zookeeper version: 3.")
        process.kill()
        process.wait(20)
    deadline_s = time.monotonic() + 20
    while not refused(address):
        assert time.monotonic() < deadline_s, "the server lives on"
    port = address.rpartition(":")[2]
    with running("--data", str(tmp_path / "zk"), "--port", port) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == address
