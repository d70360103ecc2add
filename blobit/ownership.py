"""Whose a ledger of objects is, by what it has said of itself since it was made.

Rows of tables are no proof: whoever wrote one of them may have named any ledger there is.

Invariants:
- A ledger is a bucket's only if it says so. Every version has written the bucket's id into the
  metadata of its ledgers; what does not say it is the store's objects without a bucket, or others'.
"""

from collections.abc import Mapping
from typing import Final

LEDGER_OWNER: Final = {"owner": b"blobit"}
"""Custom metadata of every ledger of a store of objects, so that an orphan tells whose it is."""

_OWNER: Final = LEDGER_OWNER["owner"]


def bucket_of(custom: Mapping[str, bytes]) -> int | None:
    """The id of the bucket whose ledger this is, by its custom metadata; None: no bucket's.

    >>> bucket_of({"owner": b"blobit", "bucket": b"7"})
    7
    """
    bucket_id = custom.get("bucket", b"")
    return int(bucket_id) if custom.get("owner") == _OWNER and bucket_id.isdigit() else None


def is_of_bucket(custom: Mapping[str, bytes], bucket_id: int) -> bool:
    """Whether a ledger with this custom metadata is that bucket's.

    >>> is_of_bucket({"owner": b"blobit"}, 7), is_of_bucket({"owner": b"log", "bucket": b"7"}, 7)
    (False, False)
    """
    return bucket_of(custom) == bucket_id
