"""Every error of the blob store.

    BlobError
    ├── InvalidObjectId       the text is no object id; nothing was looked up
    ├── RangeInvalid          the range does not lie within the object
    ├── BlobNotFound          looked for, and positively not there: deleted, or another cluster's id
    ├── BlobUnreadable        it exists or may exist, and no answer came: retry, or repair
    │   └── BlobCorrupt       an answer came, and it is not the object that the id describes
    ├── BlobNotStored         the put failed and there is no id: put again
    └── BlobsClosed           this handle is closed, forked, or called on its own loop's thread

Errors of the ledger layer stand in `__cause__`.
"""


class BlobError(Exception):
    """The root. Catch it to catch everything that the blob store raises on purpose."""


class InvalidObjectId(BlobError):
    """The text is not an id that this program can read. Do not retry; look where it came from."""


class RangeInvalid(BlobError):
    """The range does not lie within the object. The object's length is in its id."""


class BlobNotFound(BlobError):
    """Positively not there: its ledger was deleted, or the id belongs to another store."""


class BlobUnreadable(BlobError):
    """The object exists or may exist, but could not be read now. Retry later, or repair."""


class BlobCorrupt(BlobUnreadable):
    """What was read is not what the id describes. Retrying will not help; nothing was returned."""


class BlobNotStored(BlobError):
    """The object was not stored and has no id. The source may be put again."""


class BlobsClosed(BlobError):
    """The handle cannot be used here: it is closed, or this is a forked child of the process
    that opened it (open again), or a sync call on the event loop's own thread (use the async one).
    """
