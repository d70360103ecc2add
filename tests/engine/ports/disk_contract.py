"""What every `Disk` does, whatever it is made of.

A subclass gives `disk`; `tests/engine/ports/test_system_disk.py` shows how.
"""

import pytest

from engine.ports.disk import Disk


class DiskContract:
    """Run over every implementation of `Disk`."""

    @pytest.fixture
    def disk(self) -> Disk:
        raise NotImplementedError

    def test_what_was_appended_is_read_back(self, disk: Disk) -> None:
        disk.make_folder("journal")
        file = disk.open_append("journal/1", create=True)
        assert file.write([b"moo", b"", b"baa"]) == 6
        file.sync()
        assert file.write([b"!"]) == 1
        file.sync()
        file.close()
        disk.sync_folder("journal")
        assert disk.read("journal/1", 0, 100) == b"moobaa!"
        assert disk.size("journal/1") == 7

    def test_a_read_gives_the_asked_range_and_less_only_at_the_end(self, disk: Disk) -> None:
        _write(disk, "file", bytes(range(100)))
        assert disk.read("file", 10, 5) == bytes(range(10, 15))
        assert disk.read("file", 95, 50) == bytes(range(95, 100))
        assert disk.read("file", 100, 1) == b""
        assert disk.read("file", 1000, 1) == b""
        assert disk.read("file", 3, 0) == b""

    def test_many_ranges_are_read_in_the_order_asked(self, disk: Disk) -> None:
        _write(disk, "file", bytes(range(100)))
        found = disk.read_each("file", [(50, 2), (0, 3), (98, 9), (100, 1), (7, 0)])
        assert found == [b"23", b"\0\1\2", b"bc", b"", b""]
        assert disk.read_each("file", []) == []
        with pytest.raises(FileNotFoundError):
            disk.read_each("other", [(0, 1)])

    def test_more_parts_than_the_system_takes_at_once_are_written_whole(self, disk: Disk) -> None:
        parts = [index.to_bytes(4) for index in range(5_000)]
        file = disk.open_append("file", create=True)
        assert file.write(parts) == 20_000
        file.sync()
        file.close()
        assert disk.read("file", 0, 30_000) == b"".join(parts)

    def test_an_open_file_is_readable_while_it_grows(self, disk: Disk) -> None:
        file = disk.open_append("file", create=True)
        file.write([b"a"])
        assert disk.read("file", 0, 9) == b"a"
        file.write([b"b"])
        assert disk.read("file", 0, 9) == b"ab"
        file.close()

    def test_a_file_opened_again_goes_on_at_its_end(self, disk: Disk) -> None:
        _write(disk, "file", b"moo")
        file = disk.open_append("file", create=False)
        file.write([b"baa"])
        file.sync()
        file.close()
        assert disk.read("file", 0, 9) == b"moobaa"

    def test_zeros_ahead_are_replaced_by_what_is_written_next(self, disk: Disk) -> None:
        file = disk.open_append("file", create=True)
        assert file.write([b"moo"], 10) == 3
        file.sync()
        assert disk.size("file") == 13
        assert disk.read("file", 0, 99) == b"moo" + bytes(10)
        assert file.write([b"baa", b"!"], 10) == 4
        assert disk.size("file") == 13
        assert disk.read("file", 2, 9) == b"obaa!" + bytes(4)
        assert file.write([b"longer"]) == 6
        assert disk.read("file", 0, 99) == b"moobaa!longer"
        assert file.write([b"."], 4) == 1
        file.close()
        assert disk.read("file", 12, 99) == b"r." + bytes(4)

    def test_a_trim_cuts_the_zeros_ahead_and_nothing_else(self, disk: Disk) -> None:
        file = disk.open_append("file", create=True)
        file.write([b"moo\0"], 10)
        file.trim()
        file.trim()
        assert disk.read("file", 0, 99) == b"moo\0"
        file.write([b"baa"], 2)
        assert disk.read("file", 0, 99) == b"moo\0baa\0\0"
        file.close()
        with pytest.raises(OSError):
            file.trim()

    def test_a_file_opened_with_zeros_ahead_goes_on_behind_them(self, disk: Disk) -> None:
        file = disk.open_append("file", create=True)
        file.write([b"moo"], 2)
        file.close()
        file = disk.open_append("file", create=False)
        file.write([b"!"])
        file.close()
        assert disk.read("file", 0, 99) == b"moo\0\0!"

    def test_creating_a_file_that_is_there_fails(self, disk: Disk) -> None:
        _write(disk, "file", b"moo")
        with pytest.raises(FileExistsError):
            disk.open_append("file", create=True)
        assert disk.read("file", 0, 9) == b"moo"

    def test_a_missing_file_is_a_file_not_found_error(self, disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open_append("file", create=False)
        with pytest.raises(FileNotFoundError):
            disk.read("file", 0, 1)
        with pytest.raises(FileNotFoundError):
            disk.size("file")
        with pytest.raises(FileNotFoundError):
            disk.remove("file")
        with pytest.raises(FileNotFoundError):
            disk.truncate("file", 0)

    def test_an_append_file_closes_twice_and_is_no_use_then(self, disk: Disk) -> None:
        file = disk.open_append("file", create=True)
        file.close()
        file.close()
        with pytest.raises(OSError):
            file.write([b"moo"])
        with pytest.raises(OSError):
            file.sync()

    def test_replace_makes_a_file_and_replaces_all_of_it(self, disk: Disk) -> None:
        disk.replace("identity", b"a long first content")
        assert disk.read("identity", 0, 99) == b"a long first content"
        disk.replace("identity", b"short")
        assert disk.read("identity", 0, 99) == b"short"
        assert disk.size("identity") == 5
        assert disk.names("") == ["identity"]

    def test_truncate_cuts_and_appends_go_on_there(self, disk: Disk) -> None:
        _write(disk, "file", b"moobaa")
        disk.truncate("file", 3)
        assert disk.read("file", 0, 9) == b"moo"
        assert disk.size("file") == 3
        file = disk.open_append("file", create=False)
        file.write([b"!"])
        file.close()
        assert disk.read("file", 0, 9) == b"moo!"

    def test_a_removed_file_is_gone_and_a_new_one_of_its_name_is_empty(self, disk: Disk) -> None:
        _write(disk, "file", b"moo")
        assert disk.read("file", 0, 9) == b"moo"
        disk.remove("file")
        disk.sync_folder("")
        assert disk.names("") == []
        with pytest.raises(FileNotFoundError):
            disk.read("file", 0, 9)
        disk.open_append("file", create=True).close()
        assert disk.read("file", 0, 9) == b""

    def test_names_are_sorted_and_an_absent_folder_has_none(self, disk: Disk) -> None:
        disk.make_folder("segments")
        for name in ("b", "a", "c"):
            _write(disk, f"segments/{name}", b"")
        assert disk.names("segments") == ["a", "b", "c"]
        assert disk.names("elsewhere") == []

    def test_a_folder_is_made_with_its_parents_and_may_exist(self, disk: Disk) -> None:
        disk.make_folder("a/b/c")
        disk.make_folder("a/b/c")
        disk.make_folder("a")
        _write(disk, "a/b/c/file", b"moo")
        assert disk.names("a/b/c") == ["file"]

    @pytest.mark.parametrize("name", ["/etc/hosts", "../outside", "a/../../b", "a//b", "./a"])
    def test_no_name_leaves_the_root(self, disk: Disk, name: str) -> None:
        with pytest.raises(PermissionError):
            disk.open_append(name, create=True)
        with pytest.raises(PermissionError):
            disk.read(name, 0, 1)
        with pytest.raises(PermissionError):
            disk.replace(name, b"")

    def test_space_is_a_part_of_a_whole(self, disk: Disk) -> None:
        space = disk.space()
        assert 0 <= space.free_bytes <= space.total_bytes


def _write(disk: Disk, name: str, data: bytes) -> None:
    file = disk.open_append(name, create=True)
    file.write([data])
    file.sync()
    file.close()
