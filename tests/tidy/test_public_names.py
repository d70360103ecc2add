"""What users may import, that it is documented, and that importing it costs little."""

import ast
import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.tidy.rules import Source
from tests.tidy.test_tidy import ROOT, SOURCES

PUBLIC: dict[str, tuple[str, ...]] = {
    "engine": (
        "NO_ENTRY",
        "ClientSettings",
        "Connection",
        "Engine",
        "EngineError",
        "Entry",
        "LedgerClient",
        "LedgerReader",
        "LedgerWriter",
        "Security",
        "ZooKeeperSettings",
        "connect",
        "errors",
        "limits",
        "open",
    ),
    "blobit": (
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
    ),
    "herdbook": (
        "AsyncBook",
        "AsyncCluster",
        "Book",
        "Cluster",
        "connect",
        "connect_async",
        "open",
        "open_async",
        "read_secrets_again",
    ),
}
"""A name that goes from here breaks somebody's program: say so in CHANGELOG.md."""

HEAVY = ("rocksdict", "typer", "rich", "kazoo", "grpc", "pyspark", "duckdb", "pyarrow")
LIBRARIES = ("engine/", "blobit/", "herdbook/")


def undocumented(sources: Iterable[Source]) -> list[str]:
    """Public methods without a docstring, theirs or that of the contract that names them.

    A contract is a `Protocol`; whoever implements it need not repeat what it says.
    """
    classes = [
        (source, node)
        for source in sources
        if source.name.startswith(LIBRARIES)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    ]
    contracts = set(dir(asyncio.Protocol))
    for _, node in classes:
        if any("Protocol" in ast.unparse(parent) for parent in node.bases):
            contracts |= {method.name for method in methods_of(node) if ast.get_docstring(method)}
    return [
        f"{source.name}: {node.name}.{method.name}"
        for source, node in classes
        if not node.name.startswith("_")
        for method in methods_of(node)
        if not method.name.startswith("_")
        and method.name not in contracts
        and not ast.get_docstring(method)
    ]


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The methods that stand in a class."""
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these_and_all_exist(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC[package])
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_object_says_what_it_is(package: str) -> None:
    module = importlib.import_module(package)
    named = {name: getattr(module, name) for name in module.__all__}
    silent = [name for name, it in named.items() if callable(it) and not it.__doc__]
    assert silent == []


def test_every_public_method_is_documented_by_itself_or_by_its_contract() -> None:
    assert undocumented(SOURCES) == []


def test_a_method_without_a_word_is_noticed() -> None:
    silent = Source.parse("engine/x.py", "class X:\n    def f(self): ...\n")
    contract = Source.parse(
        "engine/y.py", 'class Y(Protocol):\n    def f(self):\n        """It says."""\n'
    )
    assert undocumented([silent]) == ["engine/x.py: X.f"]
    assert undocumented([silent, contract]) == []


@pytest.mark.parametrize("package", PUBLIC)
def test_heavy_libraries_load_on_first_use(package: str) -> None:
    look = f"import sys, {package}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
