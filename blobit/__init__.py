"""BlobIt: buckets of named objects of any size, kept in ledgers, read by ids that are enough."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs
    from blobit.bucket import AsyncBucket, NamedUpload
    from blobit.counting import BucketUse
    from blobit.errors import (
        AccessDenied,
        BlobCorrupt,
        BlobError,
        BlobNotFound,
        BlobNotStored,
        BlobsClosed,
        BlobUnreadable,
        BucketExists,
        BucketNotEmpty,
        CommitOutcomeUnknown,
        ConditionFailed,
        DiskFull,
        InvalidName,
        InvalidObjectId,
        InvalidToken,
        MetadataUnavailable,
        NoSuchBucket,
        NoSuchObject,
        NoSuchUpload,
        ObjectChanged,
        ObjectExists,
        PartMissing,
        QuotaExceeded,
        RangeInvalid,
        SettingsInvalid,
    )
    from blobit.garbage_report import GarbageReport
    from blobit.garbage_settings import GarbageSettings
    from blobit.listing import Listing
    from blobit.locations import Location
    from blobit.object_id import Kind, ObjectId
    from blobit.settings import BlobSettings, BucketSettings
    from blobit.sources import ReadableFile, Source
    from blobit.sync import Blobs
    from blobit.sync_bucket import Bucket, SyncUpload
    from blobit.sync_calls import SyncSource
    from blobit.tables import BucketInfo, ObjectInfo, PartInfo, UploadInfo, Usage
    from blobit.tablespace_pool import PoolLimits, PoolTablespace
    from blobit.upload import Upload

__all__ = [
    "AccessDenied",
    "AsyncBlobs",
    "AsyncBucket",
    "BlobCorrupt",
    "BlobError",
    "BlobNotFound",
    "BlobNotStored",
    "BlobSettings",
    "BlobUnreadable",
    "Blobs",
    "BlobsClosed",
    "Bucket",
    "BucketExists",
    "BucketInfo",
    "BucketNotEmpty",
    "BucketSettings",
    "BucketUse",
    "CommitOutcomeUnknown",
    "ConditionFailed",
    "DiskFull",
    "GarbageReport",
    "GarbageSettings",
    "InvalidName",
    "InvalidObjectId",
    "InvalidToken",
    "Kind",
    "Listing",
    "Location",
    "MetadataUnavailable",
    "NamedUpload",
    "NoSuchBucket",
    "NoSuchObject",
    "NoSuchUpload",
    "ObjectChanged",
    "ObjectExists",
    "ObjectId",
    "ObjectInfo",
    "PartInfo",
    "PartMissing",
    "PoolLimits",
    "PoolTablespace",
    "QuotaExceeded",
    "RangeInvalid",
    "ReadableFile",
    "SettingsInvalid",
    "Source",
    "SyncSource",
    "SyncUpload",
    "Upload",
    "UploadInfo",
    "Usage",
]

# Hidden from those who check types: to them each unknown name would be one that there is.
if not TYPE_CHECKING:
    _PLACES = {
        "blobs": ("AsyncBlobs",),
        "bucket": (
            "AsyncBucket",
            "NamedUpload",
        ),
        "counting": ("BucketUse",),
        "errors": (
            "AccessDenied",
            "BlobCorrupt",
            "BlobError",
            "BlobNotFound",
            "BlobNotStored",
            "BlobsClosed",
            "BlobUnreadable",
            "BucketExists",
            "BucketNotEmpty",
            "CommitOutcomeUnknown",
            "ConditionFailed",
            "DiskFull",
            "InvalidName",
            "InvalidObjectId",
            "InvalidToken",
            "MetadataUnavailable",
            "NoSuchBucket",
            "NoSuchObject",
            "NoSuchUpload",
            "ObjectChanged",
            "ObjectExists",
            "PartMissing",
            "QuotaExceeded",
            "RangeInvalid",
            "SettingsInvalid",
        ),
        "garbage_report": ("GarbageReport",),
        "garbage_settings": ("GarbageSettings",),
        "listing": ("Listing",),
        "locations": ("Location",),
        "object_id": (
            "Kind",
            "ObjectId",
        ),
        "settings": (
            "BlobSettings",
            "BucketSettings",
        ),
        "sources": (
            "ReadableFile",
            "Source",
        ),
        "sync": ("Blobs",),
        "sync_bucket": (
            "Bucket",
            "SyncUpload",
        ),
        "sync_calls": ("SyncSource",),
        "tables": (
            "BucketInfo",
            "ObjectInfo",
            "PartInfo",
            "UploadInfo",
            "Usage",
        ),
        "tablespace_pool": (
            "PoolLimits",
            "PoolTablespace",
        ),
        "upload": ("Upload",),
    }

    def __getattr__(name):
        """Import what a name leads to with its first use: a command's help needs none."""
        from importlib import import_module

        for place, names in _PLACES.items():
            if name in names:
                found = getattr(import_module(f"blobit.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
