"""Who watches over processes: real ones that do as they are told."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.ports.clock import Clock, SystemClock
from herdbook.node.settings import NodeSettings, Role, SupervisorTable
from herdbook.node.supervisor import Ending, Member, MemberState, NodeFailed, Supervisor
from tests.acceptance.machines import until

CHILD = (sys.executable, "-m", "tests.herdbook.node.obedient_child")
QUICK = SupervisorTable(restart_pause_ms=1, restart_pause_ms_max=2, restarts_max=3)
QUICK_LOOKS = msgspec.structs.replace(QUICK, silence_ms=1_000)


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Leaping(SystemClock):
    """A clock that was stopped for a while, as whoever reads it was."""

    leap_s = 0.0
    stride_s = 0.0
    """So much more each time."""

    def __init__(self) -> None:
        self.looked = asyncio.Event()

    def monotonic(self) -> float:
        """See `Clock`."""
        self.looked.set()
        self.leap_s += self.stride_s
        return super().monotonic() + self.leap_s


class Watching:
    """A supervisor that runs, and what has come about."""

    def __init__(
        self,
        folder: Path,
        table: SupervisorTable,
        clock: Clock | None = None,
        **members: tuple[str, ...],
    ) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.begun: dict[str, list[str]] = {}
        """Who has begun, and who served at that moment."""
        self.ending = Ending()
        self.lost: OSError | None = None
        """Why no line of theirs can be passed on."""
        self._moved = asyncio.Event()
        made = [
            Member(
                name,
                NodeSettings(data=str(folder), host=name, rack=what),
                tuple(Role(role) for role in roles),
            )
            for name, (what, *roles) in members.items()
        ]
        self.supervisor = Supervisor(
            made,
            table,
            clock or SystemClock(),
            say=self._say,
            changed=self._change,
            command=CHILD,
        )
        self.running = asyncio.create_task(self.supervisor.run(self.ending))
        self.running.add_done_callback(lambda _: self._moved.set())

    def _say(self, name: str, line: str) -> None:
        if self.lost is not None:
            raise self.lost
        self.lines.append(f"{name}: {line}")

    def _change(self, supervisor: Supervisor) -> None:
        states = supervisor.states
        serving = [name for name, each in states.items() if each.state == "serving"]
        for name in (name for name, each in states.items() if each.pid):
            self.begun.setdefault(name, serving)
        self._moved.set()

    async def until(self, state: str, *, restarts: int = 0) -> None:
        """Wait until all of them are in that state, started again so often in all."""
        async with asyncio.timeout(20):
            while True:
                states = self.states.values()
                if all(each.state == state for each in states):
                    if sum(each.restarts for each in states) == restarts:
                        return
                assert not self.running.done(), self.running
                self._moved.clear()
                await self._moved.wait()

    @property
    def states(self) -> dict[str, MemberState]:
        """How they fare."""
        return self.supervisor.states

    async def end(self) -> None:
        """As the first signal does."""
        self.ending.tell()
        await self.running

    def events(self) -> list[str]:
        """What the processes wrote down."""
        return (self.folder / "events").read_text().splitlines()


async def test_roles_end_in_the_opposite_order_of_their_start_over_all_processes(
    tmp_path: Path,
) -> None:
    roles = ("serve", "bookie", "herd", "broker", "http")
    watching = Watching(tmp_path, QUICK, elsa=roles, bert=roles)
    await watching.until("serving")
    assert watching.states["elsa"].at["herd"] == "elsa's herd"
    await watching.end()
    ended = [line.split()[-1] for line in watching.events() if "ended" in line]
    assert ended == ["http", "http", "broker", "broker", "herd", "herd", "bookie", "bookie"]
    assert all((each.state, each.pid) == ("ended", 0) for each in watching.states.values())
    assert sorted(watching.lines) == ["bert: bert moos", "elsa: elsa moos"]


async def test_all_processes_are_told_to_read_secrets_again(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("serve", "bookie"), bert=("serve", "herd"))
    await watching.until("serving")
    watching.supervisor.renew()

    async def read() -> bool:
        states = watching.states
        return {each.at.get("bookie") or each.at["herd"] for each in states.values()} == {
            "elsa, read again",
            "bert, read again",
        }

    await until("both have read again", read)
    await watching.end()
    watching.supervisor.renew()
    assert all(each.restarts == 0 for each in watching.states.values())


async def test_what_needs_a_bookie_begins_when_that_one_serves(tmp_path: Path) -> None:
    watching = Watching(
        tmp_path, QUICK, herd=("serve", "herd"), bookie=("serve", "bookie"), http=("serve", "http")
    )
    await watching.until("serving")
    await watching.end()
    assert watching.begun["bookie"] == []
    assert all("bookie" in watching.begun[name] for name in ("herd", "http"))
    assert watching.events()[-3:] == ["http ended http", "herd ended herd", "bookie ended bookie"]


async def test_a_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("crash once", "bookie"))
    await watching.until("serving", restarts=1)
    await watching.end()
    assert watching.events().count("elsa began") == 2
    assert "elsa: it was ended by SIGKILL; it starts again in 1 ms" in watching.lines


async def test_a_process_that_a_signal_without_a_name_ends_is_started_again(
    tmp_path: Path,
) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("serve", "bookie"))
    await watching.until("serving")
    os.kill(watching.states["elsa"].pid, signal.SIGRTMIN + 1)
    await watching.until("serving", restarts=1)
    await watching.end()
    said = f"elsa: it was ended by signal {signal.SIGRTMIN + 1}; it starts again in 1 ms"
    assert said in watching.lines


async def test_what_cannot_be_ends_the_node_with_what_it_said(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("serve", "bookie"), bert=("wrong", "herd"))
    with pytest.raises(NodeFailed, match="bert: InvalidRequest: no such rack"):
        await watching.running
    assert watching.events()[-1] == "elsa ended bookie"
    assert watching.events().count("bert began") == 1


async def test_what_has_served_is_started_again_whatever_it_says(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("wrong once", "bookie"))
    await watching.until("serving", restarts=1)
    await watching.end()
    assert "elsa: InvalidRequest: no such rack; it starts again in 1 ms" in watching.lines


async def test_who_ran_for_long_before_it_ended_is_started_again_as_if_for_the_first_time(
    tmp_path: Path,
) -> None:
    clock = Leaping()
    clock.stride_s = QUICK.steady_ms / 1000
    watching = Watching(tmp_path, QUICK, clock, elsa=("crash", "bookie"))
    await watching.until("waiting", restarts=QUICK.restarts_max + 1)
    await watching.end()
    pauses = {line.split()[-2] for line in watching.lines}
    assert pauses == {"1"}


async def test_a_signal_that_comes_while_a_process_is_being_made_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is there is told to end before that one is there."""
    begun, goes_on, make = asyncio.Event(), asyncio.Event(), asyncio.create_subprocess_exec

    async def slow(*words: Any, **more: Any) -> asyncio.subprocess.Process:
        begun.set()
        await goes_on.wait()
        return await make(*words, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    watching = Watching(tmp_path, QUICK, elsa=("deaf", "bookie"))
    await begun.wait()
    watching.ending.tell()
    # The second one ends the wait for the first one's order.
    watching.ending.tell()
    for _ in range(20):
        await asyncio.sleep(0)
    goes_on.set()
    async with asyncio.timeout(10):
        await watching.running
    assert watching.states["elsa"].state == "ended"


async def test_a_process_is_started_again_only_so_often(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("crash", "bookie"))
    with pytest.raises(NodeFailed, match=r"ended 4 times in a row, .* by itself with status 3"):
        await watching.running
    assert watching.events() == ["elsa began"] * 4
    pauses = [line.split()[-2] for line in watching.lines]
    assert pauses == ["1", "2", "2"]


async def test_a_process_whose_lines_nobody_takes_is_not_held_up(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("talk", "bookie"), bert=("crash once", "herd"))
    watching.lost = BrokenPipeError("the reader of the log is gone")

    async def talked() -> bool:
        return "elsa talked" in watching.events()

    await watching.until("serving", restarts=1)
    await until("it says what it has to say", talked)
    await watching.end()
    assert not watching.lines and watching.states["elsa"].restarts == 0


async def test_who_gives_no_sign_of_life_is_silent_and_that_is_said_once(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("mute", "bookie"))
    await watching.until("serving")
    for _ in range(6):
        watching.supervisor.passed(1.0)
    assert watching.states["elsa"].state == "silent"
    os.kill(watching.states["elsa"].pid, signal.SIGUSR1)
    await watching.until("serving")
    said = [line for line in watching.lines if "moos" not in line]
    assert said == [
        "elsa: it is silent for 5000 ms: its loop stands still",
        "elsa: it is there again, after 6000 ms",
    ]
    watching.supervisor.passed(4.9)
    assert watching.states["elsa"].state == "serving"
    await watching.end()
    assert watching.states["elsa"].restarts == 0


async def test_who_is_silent_for_too_long_is_killed_and_started_again(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("mute", "bookie"))
    await watching.until("serving")
    watching.supervisor.passed(59.9)
    watching.supervisor.passed(0.1)
    await watching.until("serving", restarts=1)
    said = "elsa: it was silent for 60000 ms, and was killed; it starts again in 1 ms"
    assert said in watching.lines
    await watching.end()


async def test_who_is_silent_stays_so_where_that_is_wanted(tmp_path: Path) -> None:
    table = msgspec.structs.replace(QUICK, silence_ms_max=0)
    watching = Watching(tmp_path, table, elsa=("mute", "bookie"))
    await watching.until("serving")
    for _ in range(3):
        watching.supervisor.passed(1e6)
    os.kill(watching.states["elsa"].pid, signal.SIGUSR1)
    await watching.until("serving")
    await watching.end()
    assert watching.states["elsa"].restarts == 0


async def test_a_pause_of_the_supervisor_is_nobody_elses_silence(tmp_path: Path) -> None:
    clock = Leaping()
    watching = Watching(tmp_path, QUICK_LOOKS, clock, elsa=("mute", "bookie"))
    await watching.until("serving")
    clock.leap_s = 3_600.0
    clock.looked.clear()
    await clock.looked.wait()
    assert watching.states["elsa"].state == "serving"
    await watching.end()


async def test_who_serves_http_hears_which_others_of_its_node_do_not_serve(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, herd=("mute", "herd"), http=("serve", "http"))
    await watching.until("serving")
    watching.supervisor.passed(5.0)

    async def heard() -> bool:
        return "http hears {'herd': 'silent'}" in watching.events()

    await until("it hears of it", heard)
    os.kill(watching.states["herd"].pid, signal.SIGUSR1)
    await watching.until("serving")
    await watching.end()
    heard_at_last = [line for line in watching.events() if line.startswith("http hears")][-1]
    assert heard_at_last == "http hears {}"


async def test_a_second_signal_kills_what_does_not_end(tmp_path: Path) -> None:
    watching = Watching(tmp_path, QUICK, elsa=("deaf", "bookie"))
    await watching.until("serving")
    pid = watching.states["elsa"].pid
    watching.ending.tell()
    watching.ending.tell()
    await watching.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_takes_too_long_to_end_is_killed(tmp_path: Path) -> None:
    table = SupervisorTable(stop_timeout_ms=50)
    watching = Watching(tmp_path, table, elsa=("deaf", "bookie"))
    await watching.until("serving")
    await watching.end()
    assert watching.states["elsa"].error == "it was ended by SIGKILL"


async def test_a_process_outlives_no_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from tests.herdbook.node.test_supervisor import Watching, QUICK\n"
        "async def main():\n"
        "    watching = Watching(pathlib.Path(sys.argv[1]), QUICK, elsa=('deaf', 'bookie'))\n"
        "    await watching.until('serving')\n"
        "    print(watching.states['elsa'].pid, flush=True)\n"
        "    await watching.running\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    await process.wait()

    async def gone() -> bool:
        return not runs(pid)

    await until("the process ends with its supervisor", gone)
    assert process.returncode == -signal.SIGKILL
