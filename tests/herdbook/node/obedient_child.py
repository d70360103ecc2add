"""A process that talks to a supervisor as a node's process does, and does what `rack` says.

    serve       serves until told to end
    wrong       cannot be, and says so
    crash       ends at once, each time
    crash once  serves, ends, and serves for good when it is started again
    wrong once  serves, ends because it cannot be, and serves for good when it is started again
    deaf        serves, and does not end when it is told to
    talk        serves, and says more than a pipe holds
    mute        serves without a sign of life, but when SIGUSR1 comes

What comes about is written down, a line each, in the file `events` of the folder `data`.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from herdbook.node.child import Command, Report, Told
from herdbook.node.ending_with import ending_with


def main() -> None:
    """Do it."""
    channel = socket.socket(fileno=os.dup(0))
    lines = channel.makefile("rb")
    told = msgspec.json.decode(lines.readline(), type=Told)
    ending_with(told.parent)()
    what, name = told.settings.rack, told.settings.host
    before = Path(told.settings.data, "events").exists() and f"{name} began" in events(told)

    def say(report: Report) -> None:
        channel.sendall(msgspec.json.encode(report) + b"\n")

    note(told, f"{name} began")
    if what == "wrong":
        say(Report(error="InvalidRequest: no such rack", wrong=True))
        sys.exit(1)
    if what == "crash":
        sys.exit(3)
    if what == "mute":
        signal.signal(signal.SIGUSR1, lambda *_: say(Report()))
    else:
        threading.Thread(target=beat, args=(told, say), daemon=True).start()
    for role in told.roles:
        say(Report(role=role, at=f"{name}'s {role.value}"))
    print(f"{name} moos", flush=True)
    if what == "crash once" and not before:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wrong once" and not before:
        say(Report(error="InvalidRequest: no such rack", wrong=True))
        sys.exit(1)
    if what == "talk":
        print("moo\n" * 100_000, flush=True)
        note(told, f"{name} talked")
    for line in lines:
        command = msgspec.json.decode(line, type=Command)
        if command.others is not None:
            note(told, f"{name} hears {command.others}")
        if command.renew:
            note(told, f"{name} reads again")
            say(Report(role=told.roles[0], at=f"{name}, read again"))
        if command.end is None:
            continue
        role = command.end
        note(told, f"{name} ended {role.value}")
        if what == "deaf":
            continue
        say(Report(role=role, ended=True))
        if role == told.roles[0]:
            return


def beat(told: Told, say: Callable[[Report], None]) -> None:
    """Give signs of life to the end."""
    ended = threading.Event()
    with contextlib.suppress(OSError):
        while True:
            say(Report())
            ended.wait(told.settings.supervisor.beat_ms / 1000)


def note(told: Told, line: str) -> None:
    """Write an event down."""
    with Path(told.settings.data, "events").open("a") as file:
        file.write(line + "\n")


def events(told: Told) -> list[str]:
    """What has come about."""
    return Path(told.settings.data, "events").read_text().splitlines()


if __name__ == "__main__":
    main()
