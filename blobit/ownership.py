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


def is_of_bucket(custom: Mapping[str, bytes], bucket_id: int) -> bool:
    """Whether a ledger with this custom metadata is that bucket's.

    >>> is_of_bucket({"owner": b"blobit", "bucket": b"7"}, 7)
    True
    >>> is_of_bucket({"owner": b"blobit"}, 7), is_of_bucket({"owner": b"log", "bucket": b"7"}, 7)
    (False, False)
    """
    return custom.get("owner") == _OWNER and custom.get("bucket") == b"%d" % bucket_id
