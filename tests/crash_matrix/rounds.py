"""One round of a row: run and use it, kill it at a random moment, start it again with the same
commands, and look for everything that was acknowledged."""

import json
import os
import random
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.errors import EngineError
from herdbook.node.status import read_status
from herdbook.zookeeper_server import free_port
from tests.crash_matrix.client import OBJECT, ROW, TASK
from tests.crash_matrix.processes import NotStarted, Started, named
from tests.crash_matrix.rows import (
    LOAD,
    READY,
    ROLE_SETS,
    CommandRow,
    Row,
    Runs,
    Writes,
)

LIMIT_S: Final = 10.0
"""A command that is run again must serve within this time."""
FIRST_S: Final = 60.0
_GIVE_UP_S: Final = 40.0
_JUDGE_S: Final = 120.0
_LEFT_S: Final = 5.0
_ENDS_S: Final = 2.5
"""A command that has lost a process that it needs may keep running for this long."""
_AGAIN: Final = 0.25
"""The share of rounds that also kill the commands while they restart."""
_PORTS: Final = ("broker", "grpc", "http", "herd", "bookie")


@dataclass(slots=True)
class Outcome:
    """What a round came to. `slow_s` is the slowest start, from exec to ready, `late` names those
    that took longer than `LIMIT_S`; `load` is the machine's load, of all who work there."""

    row: str
    round: int
    what: str = ""
    slow_s: float = 0.0
    looked_at: int = 0
    load: float = 0.0
    late: list[str] = field(default_factory=list)
    not_started: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all was as it has to be."""
        return not (self.late or self.not_started or self.lost or self.faults)


class Site:
    """Where a row runs: its folder, its addresses, and what of it runs now."""

    def __init__(self, folder: Path, url: str, seed: str) -> None:
        (folder / "data").mkdir(parents=True)
        self.folder = folder
        self.seed = seed
        self._names = {"data": str(folder / "data"), "url": url, "roles": "", "seed": seed}
        numbers = [name + number for name in _PORTS for number in ("", "1", "2", "3")]
        self._names |= {name: f"127.0.0.1:{free_port('127.0.0.1')}" for name in numbers}
        self.starts: dict[int, Started] = {}
        self.old: list[Started] = []

    def fill(self, template: str, **more: Any) -> str:
        """A template with its names filled in."""
        return template.format(**{**self._names, "dev": self._dev(), **more})

    def notes(self, index: int) -> Path:
        """What the client of a number notes."""
        return self.folder / f"notes{index}"

    def set_roles(self, roles: tuple[str, ...]) -> None:
        """The roles of the round."""
        self._names["roles"] = " ".join(f"--role {role}" for role in roles)

    def start(self, index: int, runs: Runs) -> Started:
        """Start a command of the row."""
        words = self.fill(runs.words, notes=self.notes(index)).split()
        started = Started(words, self.folder / f"command{index}")
        if index in self.starts:
            self.old.append(self.starts[index])
        self.starts[index] = started
        return started

    def end(self) -> None:
        """Kill all of it."""
        for started in (*self.starts.values(), *self.old):
            started.kill()
        self.starts.clear()
        self.old.clear()

    def _dev(self) -> str:
        """The url of a cluster for development, which it said."""
        if (started := self.starts.get(0)) is None:
            return ""
        with suppress(ValueError):
            told = json.loads(started.said() or "{}")
            return str((told[0] if isinstance(told, list) else told).get("url", ""))
        return ""


class RunningRow:
    """Rounds of a row whose commands run until they are killed."""

    def __init__(self, row: Row, site: Site) -> None:
        self._row = row
        self._site = site

    def round(self, number: int, rng: random.Random) -> Outcome:
        """One round."""
        outcome = Outcome(self._row.name, number)
        site, row = self._site, self._row
        try:
            self._begin(number)
            lines = self._lines()
            time.sleep(rng.uniform(0.0, 2.0))
            self._kill(rng, outcome)
            if rng.random() < _AGAIN:
                self._kill_again(rng, outcome)
            self._start_again(outcome)
            if not outcome.not_started:
                self._look_for_left(outcome)
                files = [f"{site.notes(index)}:{line}" for index, line in lines.items()]
                _judge(site, outcome, site.fill(row.store), row.kinds, files)
        except NotStarted as error:
            outcome.faults.append(f"the round could not begin: {error}")
        if outcome.not_started or outcome.lost or outcome.faults:
            # The next round begins with nothing that is half there.
            site.end()
        return outcome

    def _begin(self, number: int) -> None:
        """Have all of it run. Raises `NotStarted`."""
        site = self._site
        if "{roles}" in self._row.runs[0].words:
            if 0 in site.starts:
                site.starts[0].kill()
            site.set_roles(ROLE_SETS[number % len(ROLE_SETS)])
        for index, runs in enumerate(self._row.runs):
            if "{dev}" in runs.words and index in site.starts:
                # The ports of such a cluster may move.
                site.starts[index].kill()
            if index not in site.starts or not site.starts[index].runs:
                site.start(index, runs).until(runs.ready, FIRST_S)

    def _lines(self) -> dict[int, int]:
        """How far each client has noted."""
        counts = {}
        for index, runs in enumerate(self._row.runs):
            if "{notes}" in runs.words:
                path = self._site.notes(index)
                counts[index] = path.read_bytes().count(b"\n") if path.exists() else 0
        return counts

    def _kill(self, rng: random.Random, outcome: Outcome) -> None:
        """Kill all that may be, one command, or one process."""
        able = [index for index, runs in enumerate(self._row.runs) if runs.killed]
        if rng.random() < 0.5:
            outcome.what = "all"
            doomed = [self._site.starts[index] for index in able]
            for each, pids in [(each, each.everyone()) for each in doomed]:
                each.kill(pids)
            return
        index = rng.choice(able)
        started = self._site.starts[index]
        everyone = started.everyone()
        if not everyone:
            outcome.faults.append(f"command {index} had ended: {started.last_words()}")
            return
        victim = rng.choice([started.process.pid, rng.choice(everyone)])
        folder = self._status_folder(index)
        watched = folder is not None and victim in _members(folder)
        outcome.what = f"one of {len(everyone)}: {named(victim)}"
        began_s = time.monotonic()
        started.kill([victim])
        if victim != started.process.pid:
            self._wait_for_part(index, victim if watched else 0, began_s, outcome)

    def _wait_for_part(self, index: int, victim: int, began_s: float, outcome: Outcome) -> None:
        """A part of a command was killed: it comes back, or the command ends."""
        started, folder = self._site.starts[index], self._status_folder(index)
        while started.runs:
            passed_s = time.monotonic() - began_s
            if folder is None or not victim:
                # The judge checks whether it does its work.
                if passed_s > _ENDS_S:
                    return
            elif _serves(folder, victim):
                outcome.slow_s = max(outcome.slow_s, passed_s)
                if passed_s > LIMIT_S:
                    outcome.late.append(f"a part was back after {passed_s:.1f} s")
                return
            elif passed_s > _GIVE_UP_S:
                outcome.not_started.append(f"a part does not come back: {started.last_words()}")
                return
            time.sleep(0.02)

    def _status_folder(self, index: int) -> Path | None:
        runs = self._row.runs[index]
        return Path(self._site.fill(runs.node)) / ".node" if runs.node else None

    def _kill_again(self, rng: random.Random, outcome: Outcome) -> None:
        """Start what was killed, and kill it before or after it is ready."""
        dead = [index for index, started in self._site.starts.items() if not started.runs]
        for index in dead:
            self._site.start(index, self._row.runs[index])
        after_s = rng.uniform(0.05, 2.5)
        time.sleep(after_s)
        for index in dead:
            self._site.starts[index].kill()
        if dead:
            outcome.what += f"; again after {after_s:.1f} s"

    def _start_again(self, outcome: Outcome) -> None:
        """Give the same commands again; the time counts from exec to ready."""
        site = self._site
        dead = [index for index, started in site.starts.items() if not started.runs]
        for index in dead:
            if not self._row.runs[index].killed:
                words = site.starts[index].last_words()
                outcome.faults.append(f"command {index} ended though nobody killed it: {words}")
            if "{dev}" not in self._row.runs[index].words:
                site.start(index, self._row.runs[index])
        for index in dead:
            runs, started = self._row.runs[index], site.starts[index]
            if "{dev}" in runs.words:
                continue
            try:
                passed_s = started.until(runs.ready, _GIVE_UP_S)
            except NotStarted as error:
                outcome.not_started.append(f"command {index}: {error}")
                continue
            outcome.slow_s = max(outcome.slow_s, passed_s)
            if passed_s > LIMIT_S:
                outcome.late.append(f"command {index} was ready after {passed_s:.1f} s")

    def _look_for_left(self, outcome: Outcome) -> None:
        """Check that no process outlives the first process of its start, if that was killed."""
        for started in self._site.old:
            if left := started.gone(_LEFT_S):
                names = ", ".join(named(pid) for pid in left)
                outcome.faults.append(f"left behind: {names}")
                started.kill()
        self._site.old.clear()


def _members(folder: Path) -> dict[int, str]:
    """The processes that a node says it has, and how each is."""
    with suppress(EngineError):
        return {each.pid: each.state for each in read_status(folder).members.values()}
    return {}


def _serves(folder: Path, victim: int) -> bool:
    """Whether all processes of a node serve, none of them the one that was killed."""
    members = _members(folder)
    return bool(members) and victim not in members and set(members.values()) == {"serving"}


def _judge(site: Site, outcome: Outcome, store: str, kinds: str, files: list[str]) -> None:
    words = ["tests.crash_matrix.client", "judge", store, site.seed, kinds, *files]
    output = site.folder / "judge"
    started = Started(words, output)
    status = started.ended(_JUDGE_S)
    started.kill()
    if status != 0:
        outcome.faults.append(f"it cannot be used: status {status}: {started.last_words()}")
        return
    told = json.loads(started.said())
    outcome.looked_at, outcome.lost = told["looked_at"], told["lost"]


class CommandRounds:
    """Rounds of commands that are killed while they write, and given again."""

    def __init__(self, row: CommandRow, site: Site) -> None:
        self._row = row
        self._site = site
        self._made = False
        self._lengths: dict[int, float] = {}

    def round(self, number: int, rng: random.Random) -> Outcome:
        """One round, of one command: they take turns."""
        outcome = Outcome(self._row.name, number)
        which = number % len(self._row.commands)
        command = self._row.commands[which]
        site = self._site
        try:
            self._begin()
            for each in command.first:
                self._given(self._fill(each, number), FIRST_S)
            words = self._fill(command.words, number)
            after_s = rng.uniform(0.3, self._lengths.get(which, 2.0))
            started = Started(words, site.folder / "command")
            if started.ended(after_s) is None:
                outcome.what = f"{' '.join(words[:4])} killed after {after_s:.2f} s"
                started.kill()
            else:
                outcome.what = f"{' '.join(words[:4])} had ended"
                self._lengths[which] = after_s
            self._again(words, command, outcome)
            if left := started.gone(_LEFT_S):
                outcome.faults.append(f"left behind: {', '.join(map(named, left))}")
                started.kill()
            store = self._fill("{store}", number)[0]
            kinds = ",".join((ROW, OBJECT, TASK))
            if self._row.name == "restore":
                store = self._fill("{data}.restored{n}", number)[0]
            _judge(site, outcome, store, kinds, [f"{site.notes(9)}:0"])
        except NotStarted as error:
            outcome.faults.append(f"the round could not begin: {error}")
        return outcome

    def _again(self, words: list[str], command: Writes, outcome: Outcome) -> None:
        """The same command works, within the time, or says that it was done."""
        started = Started(words, self._site.folder / "command")
        status = started.ended(_GIVE_UP_S)
        passed_s = time.monotonic() - started.began_s
        outcome.slow_s = passed_s
        said = started.last_words() + started.said()
        done = status == 0 or any(each in said for each in command.before)
        started.kill()
        if not done:
            outcome.not_started.append(f"status {status} after {passed_s:.1f} s: {said[-400:]}")
        elif passed_s > LIMIT_S:
            outcome.late.append(f"it had ended after {passed_s:.1f} s")

    def _fill(self, words: str, number: int) -> list[str]:
        site = self._site
        store = site.fill("{url}" if self._row.cluster else "{data}")
        file, word = site.folder / "file", site.folder / "word"
        filled = site.fill(words, n=number, store=store, file=file, word=word)
        return [each.replace("~", " ") for each in filled.split()]

    def _given(self, words: list[str], limit_s: float) -> None:
        """Give a command that has to work. Raises `NotStarted`."""
        started = Started(words, self._site.folder / "made")
        status = started.ended(limit_s)
        if status != 0:
            started.kill()
            raise NotStarted(f"{' '.join(words)}: status {status}: {started.last_words()}")

    def _begin(self) -> None:
        """Have a store with something in it, and what serves beside the commands."""
        site = self._site
        for index, runs in enumerate(self._row.serves):
            if index not in site.starts or not site.starts[index].runs:
                site.start(index, runs).until(runs.ready, FIRST_S)
        if self._made:
            return
        (site.folder / "file").write_bytes(bytes(range(256)) * 4_000)
        (site.folder / "word").write_text("a word of ann\n")
        (site.folder / "word").chmod(0o600)
        store = self._fill("{store}", 0)[0]
        load = f"{LOAD} {store} {site.notes(9)} {site.seed} entry row object task"
        started = Started(load.split(), site.folder / "load")
        started.until(READY, FIRST_S)
        time.sleep(1.0)
        started.kill()
        sql = "CREATE~TABLE~IF~NOT~EXISTS~kept~(id~INT~PRIMARY~KEY,~says~TEXT)"
        for words in (
            f"herdbook sql --url {{store}} -c {sql}",
            "herdbook blob mb kept --exist-ok --url {store}",
            "herdbook blob put {file} kept/a --url {store}",
            "herdbook task schedule s milk --every-ms 3600000 --url {store}",
            "herdbook store backup {data}.backups --url {store}",
        ):
            self._given(self._fill(words, 0), FIRST_S)
        self._made = True


def made(row: Row | CommandRow, folder: Path, url: str, seed: str) -> "Rounds":
    """The rounds of a row, in a folder of their own."""
    return Rounds(row, Site(folder, url, seed))


class Rounds:
    """A row at its site; a context manager that leaves nothing behind but what is kept."""

    def __init__(self, row: Row | CommandRow, site: Site) -> None:
        self._site = site
        kind = RunningRow if isinstance(row, Row) else CommandRounds
        self._rounds: Any = kind(row, site)  # type: ignore[arg-type]
        self.keep = False

    def round(self, number: int, seed: str) -> Outcome:
        """One round, drawn from a seed."""
        outcome: Outcome = self._rounds.round(number, random.Random(seed))
        outcome.load = os.getloadavg()[0]
        self.keep |= not outcome.good
        return outcome

    def __enter__(self) -> "Rounds":
        return self

    def __exit__(self, *_: object) -> None:
        self._site.end()
        if not self.keep:
            shutil.rmtree(self._site.folder, ignore_errors=True)
