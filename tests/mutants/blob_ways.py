"""Mutants of the ways into a blob store: files of objects, folders, the file system."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_FILE: Final = "blobit/test_file.py"
_FILES: Final = "blobit/fs/test_files.py"
_SYSTEM: Final = "blobit/fs/test_file_system.py"
_FOLDERS: Final = "herdbook/test_cli_blob_folders.py"

BLOB_WAY_MUTANTS: Final = (
    Mutant(
        "a-reader-follows-another-version",
        "all bytes of a file are of the version that was opened",
        "blobit/file.py",
        "        if found.etag != self.info.etag:\n",
        "        if False:\n",
        by_test(_FILE, "test_a_version_that_was_overwritten_or_deleted_is_told"),
    ),
    Mutant(
        "who-jumps-is-read-ahead-for",
        "who jumps gets what was asked for and no more",
        "blobit/file.py",
        "        if not in_a_row:\n",
        "        if False:\n",
        by_test(_FILE, "test_who_jumps_gets_what_was_asked_for_and_no_more"),
    ),
    Mutant(
        "half-a-file-becomes-an-object",
        "an error inside a with block leaves no object",
        "herdbook/fs_files.py",
        """        if kind is not None and not self.closed:
            self.discard()
        self.close()
""",
        "        self.close()\n",
        by_test(_FILES, "test_an_error_inside_the_block_leaves_nothing"),
    ),
    Mutant(
        "every-bracket-is-a-pattern",
        "a name that is there is no pattern",
        "herdbook/fs.py",
        "not has_magic(str(each)) or self.exists(each)",
        "not has_magic(str(each))",
        by_test(
            _SYSTEM, "test_a_name_that_looks_like_a_pattern_is_that_name_where_it_is_there[False]"
        ),
    ),
    Mutant(
        "what-is-carried-is-written-over",
        "no object takes the place of one that is carried, too",
        "herdbook/fs_carrying.py",
        "        if target in sources and target != source:\n",
        "        if False:\n",
        by_test(_SYSTEM, "test_no_object_takes_the_place_of_one_that_is_carried_too"),
    ),
    Mutant(
        "equal-length-is-equal",
        "what is passed over has the same checksum",
        "herdbook/cli/blob_putting.py",
        "        if google_crc32c.value(data) == known.checksum:\n",
        "        if True:\n",
        by_test(_FOLDERS, "test_a_second_run_passes_over_what_is_there"),
    ),
    Mutant(
        "a-name-leads-out-of-the-folder",
        "nothing is written outside of the folder that was named",
        "herdbook/cli/blob_folders.py",
        """any(part in ("", ".", "..") for part in parts)""",
        "False",
        by_test(_FOLDERS, "test_a_name_that_leads_out_of_the_folder_is_refused[../x]"),
    ),
    Mutant(
        "files-are-written-through-links",
        "nothing is written through a symbolic link below the folder",
        "herdbook/cli/blob_folders.py",
        "                if not stat.S_ISDIR(os.lstat(here).st_mode):\n",
        "                if not stat.S_ISDIR(os.stat(here).st_mode):\n",
        by_test(_FOLDERS, "test_nothing_is_written_through_a_link"),
    ),
    Mutant(
        "a-download-goes-on-behind-anything",
        "a file appears when its bytes have the object's checksum",
        "herdbook/cli/blob_getting.py",
        "        if changed or (length, checksum) != (info.length, info.object_id.checksum):\n",
        "        if changed or length != info.length:\n",
        by_test(_FOLDERS, "test_a_big_object_goes_on_where_an_earlier_run_ended"),
    ),
    Mutant(
        "the-second-file-wins",
        "two files never become one object",
        "herdbook/cli/blob_transfer.py",
        "        if (other := paths.setdefault(name, item.path)) != item.path:\n",
        "        if (other := paths.setdefault(name, item.path)) == name:\n",
        by_test(_FOLDERS, "test_two_files_never_become_one_object"),
    ),
)
