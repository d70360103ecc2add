"""A worker that has done its first task leaves what is there out of later collections."""

import gc
from collections.abc import Iterator

import pytest

from engine import settling
from engine.settling import settle, settled


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settling, "_settled_process", 0)
    # Other tests of this process may have settled it before.
    gc.unfreeze()
    yield
    gc.unfreeze()


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
