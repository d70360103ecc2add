"""BlobIt: objects of any size in ledgers, named by ids that are enough to read them."""

from blobit.blobs import AsyncBlobs
from blobit.errors import (
    BlobCorrupt,
    BlobError,
    BlobNotFound,
    BlobNotStored,
    BlobsClosed,
    BlobUnreadable,
    InvalidObjectId,
    RangeInvalid,
)
from blobit.object_id import Kind, ObjectId
from blobit.settings import BlobSettings
from blobit.sources import ReadableFile, Source
from blobit.sync import Blobs, SyncSource
from blobit.upload import Upload

__all__ = [
    "AsyncBlobs",
    "BlobCorrupt",
    "BlobError",
    "BlobNotFound",
    "BlobNotStored",
    "BlobSettings",
    "BlobUnreadable",
    "Blobs",
    "BlobsClosed",
    "InvalidObjectId",
    "Kind",
    "ObjectId",
    "RangeInvalid",
    "ReadableFile",
    "Source",
    "SyncSource",
    "Upload",
]
