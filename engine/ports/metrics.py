"""Numbers about a running component, for whoever watches it: the only door to metrics.

A component asks for its counters and histograms once, when it is made, and tells them on its event
loop, at most once a batch or a request, never once an entry. A gauge is a question: whoever looks
asks it then, and until then it costs nothing.

Names are Prometheus's: small letters, the unit last, `_total` behind what only grows.

Invariants:
- The same name and labels give the same counter, whoever asks.
- Nothing that a component does ever depends on its metrics.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Upper bounds of the classes of a latency, from a quick disk's sync to a hopeless request."""


class Counter(Protocol):
    """A number that only grows."""

    def add(self, amount: float = 1) -> None:
        """Let it grow by `amount`, which is not negative."""
        ...


class Histogram(Protocol):
    """How often a measured value fell below each of some bounds."""

    def observe(self, value: float) -> None:
        """Count one value."""
        ...


class Metrics(Protocol):
    """Where metrics are kept. All methods are called on the event loop."""

    def counter(self, name: str, says: str, **labels: str) -> Counter:
        """The counter of a name and labels; `says` is what it counts, in words."""
        ...

    def histogram(
        self, name: str, says: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> Histogram:
        """The histogram of a name and labels, with the upper bounds of its classes."""
        ...

    def gauge(
        self, name: str, says: str, read: Callable[[], float], **labels: str
    ) -> Callable[[], None]:
        """Let `read` be asked whenever somebody looks; returns the way to end that."""
        ...


class NoMetrics:
    """Metrics that nobody looks at, for a component that was given no others."""

    def counter(self, name: str, says: str, **labels: str) -> Counter:
        """A counter that forgets."""
        return _NOTHING

    def histogram(
        self, name: str, says: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> Histogram:
        """A histogram that forgets."""
        return _NOTHING

    def gauge(
        self, name: str, says: str, read: Callable[[], float], **labels: str
    ) -> Callable[[], None]:
        """A question that nobody asks."""
        return _nothing


class _Nothing:
    def add(self, amount: float = 1) -> None:
        """Forget it."""

    def observe(self, value: float) -> None:
        """Forget it."""


def _nothing() -> None:
    """There is nothing to end."""


_NOTHING: Final = _Nothing()
NO_METRICS: Final = NoMetrics()
