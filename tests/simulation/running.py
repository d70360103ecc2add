"""Plays one run of any kind to its end.

Invariants:
- A task of a living process that failed with nobody to tell fails the run.
- Runs log nothing: warnings about simulated faults would hide the failures, and take time.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engine import limits
from tests.simulation.ending import without_collector
from tests.simulation.loop import SimLoop, new_loop
from tests.simulation.nodes import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. `error` is None when every promise held."""

    seed: int
    digest: str
    operations: int
    faults: int
    virtual_s: float
    counts: dict[str, int]
    error: str | None


class Playable(Protocol):
    """A run that is ready to begin."""

    @property
    def world(self) -> World:
        """Its nodes, and its loop."""
        ...

    @property
    def operations(self) -> int:
        """How many came to an end."""
        ...

    @property
    def stripe_entries(self) -> int:
        """How long the stripes of its ledgers are."""
        ...

    async def run(self) -> None:
        """The run and its verdict. Raises what broke a promise."""
        ...


Show = Callable[[str], None] | None
"""Is given each event in words."""


class RunSeed(Protocol):
    """Runs one seed of some kind of run."""

    def __call__(self, seed: int, show: Show = None) -> Outcome:
        """What came of it."""
        ...


def play(
    seed: int,
    make: Callable[[SimLoop, int, Show], Playable],
    seconds_max: float,
    show: Show,
) -> Outcome:
    """Make a run and play it. With `show` what fails is raised, too."""
    with without_collector(), _without_logs():
        return _play(seed, make, seconds_max, show)


@contextmanager
def _without_logs() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def _play(
    seed: int,
    make: Callable[[SimLoop, int, Show], Playable],
    seconds_max: float,
    show: Show,
) -> Outcome:
    loop = new_loop(seed)
    scenario = make(loop, seed, show)
    error: str | None = None
    with _stripes_of(scenario.stripe_entries):
        try:
            loop.run(scenario.run(), until_s=seconds_max)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            if show is not None:
                show(f"FAILED {error}")
                raise
        finally:
            loop.close()
    trace = scenario.world.trace
    return Outcome(
        seed,
        trace.digest(),
        scenario.operations,
        trace.counts["faults"],
        loop.now,
        dict(trace.counts),
        error,
    )


def check_tasks(world: World) -> None:
    """A task of a living process that failed with nobody to tell is a defect.

    Whoever waits for a task hears of its end at the same virtual time, but a step later.
    """
    now_s, unheard = world.loop.now, world.unheard
    for process in world.processes:
        # In a paused process, the task that awaits it has not run yet.
        if not process.alive or process.paused:
            continue
        ended = [task for task in process.tasks if task.done()]
        for task in ended:
            if not getattr(task, "_log_traceback", False):
                unheard.pop(task, None)
            elif unheard.setdefault(task, now_s) < now_s and (error := task.exception()):
                raise error
        if ended:
            process.tasks = [one for one in process.tasks if not one.done() or one in unheard]


@contextmanager
def _stripes_of(entries: int) -> Iterator[None]:
    """Short stripes, so that short ledgers have many."""
    usual = limits.STRIPE_ENTRIES
    limits.STRIPE_ENTRIES = entries  # type: ignore[misc]
    try:
        yield
    finally:
        limits.STRIPE_ENTRIES = usual  # type: ignore[misc]
