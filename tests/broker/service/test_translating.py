"""What the engine's errors become: that nothing was changed is told only where it is known."""

import pytest

from broker import errors as broker
from broker.translating import after_logging, translated
from engine import errors as engine


def _kinds(kind: type[engine.EngineError]) -> list[type[engine.EngineError]]:
    return [kind, *[one for each in kind.__subclasses__() for one in _kinds(each)]]


@pytest.mark.parametrize("kind", _kinds(engine.EngineError))
def test_what_was_given_to_the_log_is_unknown_unless_it_was_never_sent(
    kind: type[engine.EngineError],
) -> None:
    error = kind("it broke")
    never_sent = isinstance(error, engine.NotLeader)
    told = after_logging(error)
    assert isinstance(told, broker.NotLeader if never_sent else broker.OutcomeUnknown)
    assert isinstance(translated(error), broker.BrokerError)
