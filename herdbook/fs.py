"""The file system `blobit://bucket/name` of fsspec: objects for pandas, pyarrow, dask and others.

    import fsspec
    with fsspec.open("blobit://cows/2024.csv", "wb", store="./data") as file:
        file.write(b"name,milk\\n")

The storage option `store` names the store, a folder or a cluster; without it the one rule finds it
(`herdbook.finding`). Paths are `bucket/name`; folders are what names share up to a slash.

Invariants:
- Nothing is remembered between calls: a listing shows what is there now.
- A pickled file system names its store by url; a forked child opens the store anew.
- Any number of threads may use one.
"""

import errno
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeVar

from fsspec.compression import compr
from fsspec.core import get_compression, has_magic
from fsspec.spec import AbstractFileSystem
from fsspec.utils import other_paths

from blobit import AsyncBlobs, ObjectInfo, Source
from blobit.file import ObjectFile, ObjectVersion
from herdbook.blob_store import HeldStore, found_url, hold_store, parse_address
from herdbook.fs_carrying import carry, check_apart, objects_among
from herdbook.fs_files import (
    AppendSink,
    BlobReader,
    BlobWriter,
    CompressedWriter,
    Sink,
    TextWriter,
    UploadSink,
)
from herdbook.fs_listing import (
    Entry,
    as_of_files,
    found_below,
    info_of,
    listed,
    read_slice,
    read_slices,
    remove,
)

R = TypeVar("R")
READ_AT_ONCE: Final = 16


class BlobFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Buckets and objects as folders and files. Errors are those of files where there is one."""

    protocol = "blobit"

    def __init__(self, store: str | None = None, **options: Any) -> None:
        """`store` is a folder, or a cluster's url. Raises `StoreNotFound`."""
        super().__init__(**options)
        self._named = found_url(store) if store else None

    @property
    def url(self) -> str:
        """The store: a folder or a cluster's url. Raises `StoreNotFound`."""
        return self._named or found_url()

    @property
    def fsid(self) -> str:
        """The same for all that use one store."""
        return f"blobit+{self.url}"

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: value for name, value in self.storage_options.items() if name != "store"}
        return _unpickled, (self.url, options)

    def run(self, call: Callable[[AsyncBlobs], Awaitable[R]]) -> R:
        """Do something with the store on its loop; errors come as those of files."""
        store = self._store()

        async def done() -> R:
            return await call(store.blobs)

        with as_of_files():
            return store.run(done)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What a folder holds, or the object itself. Raises `FileNotFoundError`."""
        path = self._strip_protocol(path)
        entries = self.run(lambda blobs: listed(blobs, path))
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **kwargs: Any) -> Entry:
        """What is known of an object or a folder. Raises `FileNotFoundError`."""
        path = self._strip_protocol(path)
        return self.run(lambda blobs: info_of(blobs, path))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is such an object, folder or bucket; "" is there."""
        try:
            self.info(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise
            return False
        return True

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """All objects below a folder, in order; with `detail` as a dict."""
        path = self._strip_protocol(path)
        if maxdepth is not None or not path:
            return super().find(path, maxdepth, withdirs, detail, **kwargs)
        found = self.run(lambda blobs: found_below(blobs, path, withdirs))
        return found if detail else list(found)

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Bytes of all objects below a folder, together or by path."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: entry["size"] for name, entry in found.items() if entry}
        if not sizes and self.isfile(path):
            sizes = {self._strip_protocol(path): self.size(path)}
        return sum(sizes.values()) if total else sizes

    def created(self, path: str) -> datetime:
        """When this version of an object was put."""
        moment: datetime = self.info(path)["created"]
        return moment

    modified = created

    def ukey(self, path: str) -> str:
        """Another one for each version of an object: its ETag."""
        return str(self.info(path).get("etag", ""))

    def checksum(self, path: str) -> int:
        """Another one for each version of an object."""
        return int.from_bytes(self.ukey(path).encode())

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a bucket. A folder in one needs no making; with `create_parents` its bucket does.

        Raises `FileExistsError` for a bucket that is there.
        """
        address = parse_address(self._strip_protocol(path))
        if not address.name:
            self.run(lambda blobs: blobs.create_bucket(address.bucket))
        elif create_parents:
            self.run(lambda blobs: blobs.create_bucket(address.bucket, exist_ok=True))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make the bucket of a path, if it is not there. Raises `FileExistsError` as `mkdir`."""
        address = parse_address(self._strip_protocol(path))
        there = exist_ok or bool(address.name)
        self.run(lambda blobs: blobs.create_bucket(address.bucket, exist_ok=there))

    def rmdir(self, path: str) -> None:
        """Remove an empty bucket; a folder ends with its last object. Raises `OSError`."""
        address = parse_address(self._strip_protocol(path))
        if not address.name:
            self.run(lambda blobs: blobs.delete_bucket(address.bucket))

    def expand_path(
        self,
        path: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        assume_literal: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """The paths that a pattern, a folder or several of both mean.

        What is there under exactly that name is no pattern. Raises `FileNotFoundError`.
        """
        found: set[str] = set()
        for each in path if isinstance(path, list | tuple | set) else [path]:
            literal = assume_literal or not has_magic(str(each)) or self.exists(each)
            found |= set(super().expand_path([each], recursive, maxdepth, literal, **kwargs))
        return sorted(found)

    def rm_file(self, path: str) -> None:
        """Delete the one object of that name. Raises `FileNotFoundError`."""
        name = self._strip_protocol(path)
        self.run(lambda blobs: remove(blobs, [name], False))

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Delete objects, whole folders or buckets if `recursive`. Raises `FileNotFoundError`."""
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        self.run(lambda blobs: remove(blobs, paths, recursive))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy one object; within a bucket no byte of it moves. Raises `FileNotFoundError`."""
        pair = (self._strip_protocol(path1), self._strip_protocol(path2))
        self.run(lambda blobs: carry(blobs, [pair], moving=False))

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy objects, whole folders if `recursive`; in order that does not matter, or not at all.

        Raises `FileNotFoundError`, and `OSError` where a source would be written over.
        """
        pairs = self._pairs(path1, path2, recursive, maxdepth)
        skip = on_error == "ignore" or (on_error is None and recursive)
        self.run(lambda blobs: carry(blobs, pairs, moving=False, skip_missing=skip))

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Move objects; within a bucket they are renamed, into another copied and deleted.

        Raises `FileNotFoundError`, and `OSError` where one would take the place of another.
        """
        pairs = self._pairs(path1, path2, recursive, maxdepth)
        self.run(lambda blobs: carry(blobs, pairs, moving=True))

    def _pairs(
        self, path1: Any, path2: Any, recursive: bool, maxdepth: int | None
    ) -> list[tuple[str, str]]:
        """Which object goes where, as fsspec's documents have it for folders and patterns."""
        if isinstance(path1, list) and isinstance(path2, list):
            given = zip(path1, path2, strict=True)
            pairs = [(self._strip_protocol(a), self._strip_protocol(b)) for a, b in given]
            check_apart(pairs)
            return pairs
        source_is_one = isinstance(path1, str)
        is_pattern = source_is_one and has_magic(path1) and not self.exists(path1)
        paths = self.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        objects = set(self.run(lambda blobs: objects_among(blobs, paths)))
        folders = {path for path in paths if path not in objects and self.isdir(path)}
        if lost := [path for path in paths if path not in objects | folders]:
            raise FileNotFoundError(errno.ENOENT, "no such object", lost[0])
        if source_is_one and (not recursive or maxdepth is not None):
            # Folders that nobody asked for are not carried, nor do they say where others go.
            paths = [path for path in paths if path in objects]
        if not paths:
            return []
        into = path2.endswith("/") or self.isdir(path2)
        exists = source_is_one and (
            (is_pattern and len(paths) == 1)
            or (not is_pattern and into and not path1.endswith("/"))
        )
        target = self._strip_protocol(path2)
        targets = other_paths(paths, target, exists=exists, flatten=not source_is_one)
        pairs = [pair for pair in zip(paths, targets, strict=True) if pair[0] in objects]
        check_apart(pairs)
        return pairs

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Put bytes; mode "create" only where nothing is. Raises `FileExistsError`."""
        address = parse_address(self._strip_protocol(path))
        data, fresh = bytes(value), mode == "create"

        async def put(blobs: AsyncBlobs) -> None:
            bucket = await blobs.bucket(address.bucket)
            await bucket.put(address.name, data, if_absent=fresh, **kwargs)

        self.run(put)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """An object's bytes, or some of them: negative numbers count from the end."""
        path = self._strip_protocol(path)
        return self.run(lambda blobs: read_slice(blobs, (path, start, end)))

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Many ranges at once, in the order asked for; an error stands in its place."""
        count = len(paths)
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * count
        lasts = list(ends) if isinstance(ends, Iterable) else [ends] * count
        if len(firsts) != count or len(lasts) != count:
            raise ValueError("paths, starts and ends must be as many")
        names = [self._strip_protocol(path) for path in paths]
        wanted = list(zip(names, firsts, lasts, strict=True))
        got = self.run(lambda blobs: read_slices(blobs, wanted, READ_AT_ONCE))
        failed = next((each for each in got if isinstance(each, BaseException)), None)
        if failed is not None and on_error == "raise":
            raise failed
        return got

    def append(self, path: str, source: Source) -> ObjectInfo:
        """Append bytes to an object, or make it of them."""
        address = parse_address(self._strip_protocol(path))

        async def append(blobs: AsyncBlobs) -> ObjectInfo:
            return await (await blobs.bucket(address.bucket)).append(address.name, source)

        return self.run(append)

    def begin_upload(self, path: str, **options: Any) -> Any:
        """Begin an object whose bytes come one by one; see `blobit.AsyncBucket.upload`."""
        address = parse_address(self._strip_protocol(path))

        async def begin(blobs: AsyncBlobs) -> Any:
            return (await blobs.bucket(address.bucket)).upload(address.name, **options)

        return self.run(begin)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open an object: `rb`, `wb`, `xb` (only where nothing is), `ab`, and the same as text.

        Writing takes `content_type`, `metadata` and what else a put takes.
        """
        if "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        text = {
            name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs
        }
        binary_mode = mode.replace("t", "") + ("" if "b" in mode else "b")
        file = super().open(path, binary_mode, block_size, **kwargs)
        if compression is not None:
            kind = get_compression(path, compression)
            if kind is not None:
                file = CompressedWriter(compr[kind](file, mode="wb"), file)
        return file if "b" in mode else TextWriter(file, **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> BlobReader | BlobWriter:
        if mode == "rb":
            return self._reader(path)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"an object is opened rb, wb, xb or ab, not {mode}")
        self._check_name(path)
        sink: Sink
        if mode == "ab":
            sink = AppendSink(self, path)
        else:
            conditions = {"if_absent": True} if mode == "xb" else {}
            if conditions and self.exists(path):
                raise FileExistsError(errno.EEXIST, "there is such an object", path)
            sink = UploadSink(self, path, **conditions, **kwargs)
        return BlobWriter(path, sink, autocommit=autocommit)

    def _reader(self, path: str) -> BlobReader:
        address = parse_address(path)

        async def look(blobs: AsyncBlobs) -> ObjectVersion:
            bucket = await blobs.bucket(address.bucket)
            return ObjectVersion(blobs, bucket, await bucket.stat(address.name))

        self._check_name(path)
        return BlobReader(self, path, ObjectFile(self._store().loop, self.run(look)))

    def _check_name(self, path: str) -> None:
        """Raise `IsADirectoryError` for a bucket, `FileNotFoundError` for one that is not there."""
        if not parse_address(path).name:
            self.info(path)
            raise IsADirectoryError(errno.EISDIR, "a bucket is no file", path)

    def _store(self) -> HeldStore:
        return hold_store(self.url)


def _unpickled(url: str, options: dict[str, Any]) -> BlobFileSystem:
    return BlobFileSystem(store=url, **options)
