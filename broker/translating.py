"""What the ledger layer's errors mean to who uses the broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker import errors as broker
from engine import errors as engine

_KINDS: Final[tuple[tuple[type[engine.EngineError], type[broker.BrokerError]], ...]] = (
    (engine.OutcomeUnknown, broker.OutcomeUnknown),
    (engine.Overloaded, broker.Overloaded),
    (engine.DiskFull, broker.DiskFull),
    (engine.Unavailable, broker.BrokerUnavailable),
    (engine.EntryTooLarge, broker.TooLarge),
    (engine.FormatTooNew, broker.CommandUnknown),
    (engine.LevelTooNew, broker.CommandUnknown),
    (engine.EngineError, broker.BrokerUnavailable),
)


def translated(error: engine.EngineError) -> broker.BrokerError:
    """The broker's error for one of the engine."""
    if isinstance(error, engine.NotLeader):
        return broker.NotLeader(error.args[0], leader=error.leader)
    for kind, meaning in _KINDS:
        if isinstance(error, kind):
            return meaning(str(error))
    raise AssertionError("every error of the engine is an EngineError")


def after_logging(error: engine.EngineError) -> broker.BrokerError:
    """What is told of a command that was given to the log: others may apply it, whatever failed.

    Only of what was never sent the replica says that it does not lead.
    """
    if isinstance(error, engine.NotLeader):
        return translated(error)
    return broker.OutcomeUnknown(str(error))


@contextmanager
def translating() -> Iterator[None]:
    """Raise the broker's errors for those of the engine."""
    try:
        yield
    except engine.EngineError as error:
        raise translated(error) from error
