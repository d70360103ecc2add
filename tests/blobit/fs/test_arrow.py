"""pyarrow over `blobit://`: tables and datasets are written and read as on a disk."""

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FSSpecHandler, PyFileSystem

from herdbook.fs import BlobFileSystem

TABLE = pa.table(
    {
        "id": pa.array(range(20_000)),
        "herd": pa.array(["north", "south"] * 10_000),
        "litres": pa.array([number % 40 / 2 for number in range(20_000)]),
    }
)


def test_a_parquet_file_is_written_and_read(files: BlobFileSystem) -> None:
    pq.write_table(TABLE, "cows/milk.parquet", filesystem=files, row_group_size=4_000)
    assert pq.read_table("cows/milk.parquet", filesystem=files) == TABLE
    some = pq.read_table(
        "cows/milk.parquet", filesystem=files, columns=["id"], filters=[("id", "<", 10)]
    )
    assert some["id"].to_pylist() == list(range(10))


def test_a_url_and_options_are_enough_as_for_pandas(files: BlobFileSystem) -> None:
    pq.write_table(TABLE, "cows/milk.parquet", filesystem=files)
    # What pandas.read_parquet does with a url and storage_options.
    found, path = fsspec.core.url_to_fs("blobit://cows/milk.parquet", store=files.url)
    with found.open(path, "rb") as file:
        assert pq.read_table(file) == TABLE
    with fsspec.open("blobit://cows/milk.parquet", "rb", store=files.url) as file:
        assert pq.ParquetFile(file).metadata.num_rows == 20_000


def test_a_partitioned_dataset_is_written_found_and_filtered(files: BlobFileSystem) -> None:
    parts = ds.partitioning(pa.schema([("herd", pa.string())]), flavor="hive")
    ds.write_dataset(TABLE, "cows/milk", format="parquet", filesystem=files, partitioning=parts)
    assert [path for path in files.find("cows/milk") if "herd=" not in path] == []
    read = ds.dataset("cows/milk", filesystem=files, partitioning=parts)
    assert sorted(read.files) == files.find("cows/milk")
    north = read.to_table(columns=["id"], filter=ds.field("herd") == "north")
    assert north.num_rows == 10_000
    assert read.count_rows() == 20_000
    ds.write_dataset(
        TABLE.slice(0, 10),
        "cows/milk",
        format="parquet",
        filesystem=files,
        existing_data_behavior="delete_matching",
        partitioning=parts,
    )
    assert ds.dataset("cows/milk", filesystem=files, partitioning=parts).count_rows() == 10


def test_other_formats_go_the_same_way(files: BlobFileSystem) -> None:
    for kind in ("csv", "feather"):
        ds.write_dataset(TABLE, f"cows/{kind}", format=kind, filesystem=files)
        assert ds.dataset(f"cows/{kind}", format=kind, filesystem=files).count_rows() == 20_000
    with files.open("cows/a.csv", "wb") as file:
        pyarrow.csv.write_csv(TABLE, file)
    with files.open("cows/a.csv", "rb") as file:
        assert pyarrow.csv.read_csv(file).num_rows == 20_000


def test_pyarrows_own_view_of_the_file_system(files: BlobFileSystem) -> None:
    seen = PyFileSystem(FSSpecHandler(files))
    with seen.open_output_stream("cows/a/b.bin") as stream:
        stream.write(b"moo")
    with seen.open_input_file("cows/a/b.bin") as file:
        assert file.size() == 3 and file.read_at(2, 1) == b"oo"
    (info,) = seen.get_file_info(["cows/a/b.bin"])
    assert (info.size, info.is_file) == (3, True) and info.mtime is not None
    found = seen.get_file_info(FileSelector("cows", recursive=True))
    assert [each.path for each in found] == ["cows/a", "cows/a/b.bin"]
    seen.copy_file("cows/a/b.bin", "cows/a/c.bin")
    seen.move("cows/a/c.bin", "cows/d.bin")
    seen.delete_dir("cows/a")
    assert files.find("cows") == ["cows/d.bin"]
    with pytest.raises(FileNotFoundError):
        seen.open_input_file("cows/nothing")
