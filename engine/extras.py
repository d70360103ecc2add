"""Libraries that not everybody installs: what is said when one is missing.

Invariants:
- Only a library that an extra brings is spoken of so; any other missing module is a fault of ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.errors import ExtraMissing

CLUSTER: Final = frozenset(
    {"kazoo", "grpc", "grpc_health", "grpc_reflection", "google", "prometheus_client"}
)


@contextmanager
def needing_cluster() -> Iterator[None]:
    """Around imports of what the extra `cluster` brings. Raises `ExtraMissing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in CLUSTER:
            raise
        raise ExtraMissing(
            f"a cluster needs {library}, which is not installed: pip install 'herdbook[cluster]'"
        ) from error
