"""What the ledger layer's errors mean to who uses the database."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import (
    EngineError,
    EntryTooLarge,
    InvalidRequest,
    NotLeader,
    NoZooKeeper,
    OutcomeUnknown,
    ReplicaFailed,
    Unavailable,
)
from herd import errors as herd

_KINDS: tuple[tuple[type[EngineError], type[herd.Error], str], ...] = (
    (OutcomeUnknown, herd.CommitUnknown, "read what it changed to know"),
    (NotLeader, herd.LeaderUnavailable, "try again: another replica leads, or soon will"),
    (NoZooKeeper, herd.LeaderUnavailable, ""),
    (Unavailable, herd.LeaderUnavailable, "try again"),
    (EntryTooLarge, herd.TooLarge, "do it in parts"),
    (ReplicaFailed, herd.StorageFailed, "see the replica's log"),
    (InvalidRequest, herd.InterfaceError, ""),
    (EngineError, herd.StorageFailed, ""),
)


def translated(error: EngineError) -> herd.Error:
    """The database's error for one of the engine."""
    for kind, meaning, hint in _KINDS:
        if isinstance(error, kind):
            return meaning(str(error), hint=hint)
    raise AssertionError("every error of the engine is an EngineError")


@contextmanager
def translating() -> Iterator[None]:
    """Raise the database's errors for those of the engine."""
    try:
        yield
    except EngineError as error:
        raise translated(error) from error


def after_logging(error: EngineError) -> Exception:
    """What is told of a command that was given to the log.

    It may be in there although this replica failed at it, and the others apply it.
    """
    if isinstance(error, ReplicaFailed):
        return herd.CommitUnknown(str(error), hint="read what it changed to know")
    return translated(error)
