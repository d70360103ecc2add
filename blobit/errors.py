"""Every error of the blob store.

    BlobError
    ├── InvalidObjectId       the text is no object id; nothing was looked up
    ├── InvalidName           no bucket or object can be called so; nothing was looked up
    ├── SettingsInvalid       no bucket can be kept so; nothing was made
    ├── InvalidToken          the continuation token is not one of this listing
    ├── RangeInvalid          the range does not lie within the object
    ├── BlobNotFound          looked for, and positively not there: deleted, or another cluster's id
    │   ├── NoSuchBucket          there is no bucket of that name, or it was deleted
    │   ├── NoSuchObject          the bucket has no object of that name
    │   └── NoSuchUpload          the upload was completed, aborted or has expired
    ├── BlobUnreadable        it exists or may exist, and no answer came: retry, or repair
    │   └── BlobCorrupt       an answer came, and it is not the object that the id describes
    ├── BlobNotStored         the put failed and there is no id: put again
    │   └── DiskFull          only the reserve of a disk is free: delete objects, or free space
    ├── BucketExists          a bucket of that name is there already
    ├── BucketNotEmpty        it holds objects: delete them, or delete it with force
    ├── ConditionFailed       the object is not the one that the caller expects: read it again
    │   └── ObjectExists      there is an object of that name already
    ├── ObjectChanged         the object was replaced while it was read: begin again
    ├── PartMissing           an upload lacks a part that was named: put it
    ├── QuotaExceeded         the bucket may not hold so much: delete, or raise its quota
    ├── AccessDenied          who asks may not do that to names; nothing was changed
    ├── MetadataUnavailable   names cannot be looked up or changed now; nothing was changed: retry
    │   └── CommitOutcomeUnknown  the change may or may not have happened: look before you retry
    └── BlobsClosed           this handle is closed, forked, or called on its own loop's thread

Errors of the ledger layer and of the tablespaces stand in `__cause__`.
"""

import engine.errors


class BlobError(Exception):
    """The root. Catch it to catch everything that the blob store raises on purpose."""


class InvalidObjectId(BlobError):
    """The text is not an id that this program can read. Do not retry; look where it came from."""


class InvalidName(BlobError):
    """A bucket, an object or its metadata cannot be so. Do not retry; choose another one."""


class SettingsInvalid(BlobError, ValueError):
    """A bucket cannot be kept so, here or anywhere. Do not retry; choose other settings."""


class InvalidToken(BlobError):
    """The token does not continue this listing. Do not retry; list from the beginning."""


class RangeInvalid(BlobError):
    """The range does not lie within the object. The object's length is in its id."""


class BlobNotFound(BlobError):
    """Positively not there: its ledger was deleted, or the id belongs to another store."""


class NoSuchBucket(BlobNotFound):
    """There is no bucket of that name, or it has been deleted. Do not retry; create it first."""


class NoSuchObject(BlobNotFound):
    """The bucket has no object of that name now. Do not retry; list what there is."""


class NoSuchUpload(BlobNotFound):
    """The upload was completed or aborted, or has expired. Begin another one."""


class BlobUnreadable(BlobError):
    """The object exists or may exist, but could not be read now. Retry later, or repair."""


class BlobCorrupt(BlobUnreadable):
    """What was read is not what the id describes. Retrying will not help; nothing was returned."""


class BlobNotStored(BlobError):
    """The object was not stored and has no id. The source may be put again."""


class DiskFull(BlobNotStored):
    """Only the reserve of a disk is free, which is kept for deletions. Nothing was stored.

    Delete objects or buckets, or free space on the disk; then put the object again.
    """

    retryable = True


def not_stored(message: str, cause: BaseException | None) -> BlobNotStored:
    """What is raised, with its cause, where bytes could not be stored."""
    causes = engine.errors.causes(cause)
    found = next((each for each in causes if isinstance(each, engine.errors.DiskFull)), None)
    error = DiskFull(f"{found}") if found is not None else BlobNotStored(message)
    error.__cause__ = cause
    return error


class BucketExists(BlobError):
    """A bucket of that name is there. Take it with `bucket` or `exist_ok`, or name another."""


class BucketNotEmpty(BlobError):
    """The bucket holds objects. Delete them first, or delete the bucket with `force`."""


class ConditionFailed(BlobError):
    """The object is not, or no more, the one of `if_match`. Nothing was changed: read it again."""


class ObjectExists(ConditionFailed):
    """With `if_absent`: there is an object of that name. Nothing was changed."""


class ObjectChanged(BlobError):
    """Another version took the object's place while it was read. Begin again with the new one."""


class PartMissing(BlobError):
    """The upload has no part of that number. Put it, then complete the upload."""


class QuotaExceeded(BlobError):
    """The bucket would hold more than it may. Nothing was changed: delete objects, or raise it."""


class AccessDenied(BlobError):
    """Who asks may not do that to names. Nothing was changed. Do not retry; ask for a grant."""


class MetadataUnavailable(BlobError):
    """The tablespace of the names does not answer. Nothing was changed; retry later."""


class CommitOutcomeUnknown(MetadataUnavailable):
    """The change may or may not have happened, and nobody could tell in time. Look, then retry."""


class BlobsClosed(BlobError):
    """The handle cannot be used here: it is closed, or this is a forked child of the process
    that opened it (open again), or a sync call on the event loop's own thread (use the async one).
    """
