"""Buckets of a cluster whose node may be about to start."""

from blobit import Blobs, Bucket, MetadataUnavailable
from tests.spark.running import until


def bucket_of(blobs: Blobs, name: str) -> Bucket:
    """Make a bucket, as soon as a node runs its names."""

    def made() -> bool:
        try:
            blobs.create_bucket(name, exist_ok=True)
        except MetadataUnavailable:
            return False
        return True

    until(f"a node runs the names of {name}", made)
    return blobs.bucket(name)
