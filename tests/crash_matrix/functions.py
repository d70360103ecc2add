"""What workers of the matrix run."""

from broker.worker import task


@task
def twice(key: int) -> int:
    """Twice the key."""
    return 2 * key
