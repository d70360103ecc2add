"""A process that has started keeps its garbage collections short."""

import gc
from collections.abc import Iterator

import pytest

from engine import settling
from engine.settling import keep_loaded, settle, settled
from herd.sql.parsing import parse


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settling, "_settled_process", 0)
    # Other tests of this process may have settled it before.
    gc.unfreeze()
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_the_first_task_to_end_settles_its_process_and_no_later_one() -> None:
    task = settled(iter([1, 2]))
    assert next(task) == 1 and not gc.get_freeze_count()
    assert list(task) == [2]
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[number] for number in range(1_000)]
    # What is frozen may still end; what came later is not frozen.
    assert list(settled(iter(kept))) == kept and gc.get_freeze_count() < frozen + len(kept)


def test_a_task_that_nobody_reads_to_its_end_settles_too() -> None:
    task = settled(iter([1, 2]))
    next(task)
    task.close()  # type: ignore[attr-defined]
    assert gc.get_freeze_count() > 0


def test_garbage_is_not_kept() -> None:
    class Circle:
        """It names itself."""

        gone: list[int] = []

        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            self.gone.append(1)

    gc.disable()
    try:
        Circle()
        settle()
    finally:
        gc.enable()
    assert Circle.gone == [1]


def test_long_statements_rarely_cause_a_full_collection() -> None:
    keep_loaded()
    full = 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "start" and info["generation"] == 2

    gc.callbacks.append(count)
    try:
        kept: list[object] = []
        for number in range(20):
            # The latest two are kept, as plans are. Each object refers to itself, as trees do.
            kept = [*kept[-1:], parse(f"SELECT {'a,' * 3_000}{number}")]
    finally:
        gc.callbacks.remove(count)
    assert kept and full <= 2
