"""Libraries that only a part of the users load: what is said when one is missing.

They come with every installation; one that was put together by hand may lack them.

Invariants:
- Only a library that is named here is spoken of so; any other missing module is a fault of ours.
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
    """Around imports of what only clusters need. Raises `ExtraMissing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in CLUSTER:
            raise
        raise ExtraMissing(
            f"a cluster needs {library}, which is not installed: pip install herdbook brings it"
        ) from error
