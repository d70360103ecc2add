"""Mutants of the state: its overlays, its writes, its snapshots and their images."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_STORED: Final = "engine/state/stored.py"
_OVERLAY: Final = "engine/state/overlay.py"
_ROCKS: Final = "engine/state/rocks.py"
_BLOCKS: Final = "engine/state/blocks.py"
_IMAGE: Final = "engine/state/image.py"
_STORED_TESTS: Final = "engine/state/test_stored.py"
_ROCKS_TESTS: Final = "engine/state/test_rocks.py"
_IMAGE_TESTS: Final = "engine/state/test_image.py"
_STATES: Final = "engine/state/test_states.py"
_SIM: Final = "TestSimState::"
_MEMORY: Final = "TestMemoryState::"

STATE_MUTANTS: Final = (
    Mutant(
        "a-states-position-runs-ahead-of-its-rows",
        "design 4.4: each write carries the position that it covers and nothing more",
        _STORED,
        "Mark(part.position, False)",
        "Mark(overlay.position, False)",
        by_test(_STORED_TESTS, "test_one_write_is_small_and_ends_with_a_commit"),
    ),
    Mutant(
        "a-flush-claims-what-came-while-it-ran",
        "nothing counts as durable before it is",
        _STORED,
        "            self._durable = self._written\n",
        "            self._durable = self._position\n",
        by_test(_STORED_TESTS, "test_whatever_moment_a_crash_comes_whole_commits_are_left"),
    ),
    Mutant(
        "a-flush-does-not-wait-for-the-writes-before-it",
        "flush makes every commit so far durable",
        _STORED,
        "            await self._do(_Job(flush=True))\n",
        "            self._batcher.put(_Job(flush=True))\n",
        by_test(_STATES, _SIM + "test_a_crash_keeps_what_was_flushed_and_loses_only_last_commits"),
    ),
    Mutant(
        "a-flush-outlives-a-cleared-state",
        "a cleared state is durable at the start and nowhere else",
        _STORED,
        "            self._recent.clear()\n        if job.flush:\n",
        "            self._recent.clear()\n        elif job.flush:\n",
        by_test(_STORED_TESTS, "test_a_flush_under_way_while_the_state_is_cleared_claims_nothing"),
    ),
    Mutant(
        "a-failed-write-is-followed-by-others",
        "fsyncgate: after the first failure nothing is written",
        _STORED,
        "            self._thread_failed = True\n",
        "",
        by_test(_STORED_TESTS, "test_a_failed_write_lets_none_behind_it_pass"),
    ),
    Mutant(
        "a-failed-state-is-believed-again",
        "fsyncgate: a failed flush is never tried again",
        _STORED,
        "        if self._failure is not None:\n            raise self._failed() from",
        "        if self._failure is not None and self._closed:\n"
        "            raise self._failed() from",
        by_test(_STORED_TESTS, "test_after_a_failed_write_or_flush_nothing_is_written_any_more[3]"),
    ),
    Mutant(
        "a-snapshot-lacks-what-nobody-began-to-write",
        "a snapshot is of the newest commit",
        _STORED,
        "        assert not self._restoring\n        self._seal()\n        try:",
        "        assert not self._restoring\n        try:",
        by_test(_STATES, _SIM + "test_a_snapshot_is_of_its_commit_whatever_changes_afterwards"),
    ),
    Mutant(
        "a-read-falls-between-memory-and-disk",
        "an overlay is dropped when the storage has it, not before",
        _STORED,
        "        self._overlays = (self._uncommitted, self._gathered, *self._sealed)\n",
        "        self._overlays = (self._uncommitted, self._gathered)\n",
        by_test(_STATES, _SIM + "test_snapshots_of_several_commits_live_beside_each_other"),
    ),
    Mutant(
        "half-a-restoration-passes-for-a-state",
        "a restoration that was cut short leaves an empty state",
        _STORED,
        "        mark = Mark(START, True)\n",
        "        mark = Mark(START, False)\n",
        by_test(_STATES, _SIM + "test_a_restoration_that_was_cut_short_leaves_nothing"),
    ),
    Mutant(
        "half-a-restoration-is-opened",
        "a restoration that was cut short leaves an empty state",
        _ROCKS,
        "        if mark.restoring:\n",
        "        if mark.restoring and False:\n",
        by_test(_ROCKS_TESTS, "test_a_process_killed_while_it_restores_leaves_nothing"),
    ),
    Mutant(
        "an-overlays-row-stands-beside-the-one-it-replaces",
        "an overlay's entry hides what lies below it",
        _OVERLAY,
        "        if row is not None and row[0] == key:\n            row = next(below, None)\n",
        "",
        by_test(_STATES, _SIM + "test_a_read_sees_every_change_made_so_far"),
    ),
    Mutant(
        "a-commit-is-cut-in-two",
        "what lies between two commits becomes durable together or not at all",
        _STORED,
        "        self._uncommitted.clear()\n        self._position = position\n",
        "        self._uncommitted.clear()\n        if len(gathered.parts[-1].rows) > 256:\n"
        "            from engine.state.overlay import Part\n"
        "            rest = Part()\n            rest.position = position\n"
        "            rest.rows = dict(list(gathered.parts[-1].rows.items())[256:])\n"
        "            gathered.parts.append(rest)\n        self._position = position\n",
        by_test(_STORED_TESTS, "test_one_write_is_small_and_ends_with_a_commit"),
    ),
    Mutant(
        "the-position-is-written-by-itself",
        "design 5: the position is in the same batch as its rows",
        _ROCKS,
        "        put, delete = batch.put, batch.delete\n",
        "        put, delete = batch.put, batch.delete\n"
        "        self._db.put(_MARK_KEY, _packed(mark), self._write)\n",
        by_test(_ROCKS_TESTS, "test_a_write_that_fails_changes_neither_rows_nor_position"),
    ),
    Mutant(
        "a-cursor-that-breaks-off-is-believed",
        "RocksDB's iterators stop in silence at damage: ask why",
        _ROCKS,
        "            step()\n        cursor.status()\n",
        "            step()\n",
        by_test(_ROCKS_TESTS, "test_damaged_bytes_are_an_error_and_never_missing_rows"),
    ),
    Mutant(
        "a-state-of-a-newer-format-is-opened",
        "a newer major version is refused",
        _ROCKS,
        "    if major > FORMAT_MAJOR:\n",
        "    if major > 99:\n",
        by_test(_ROCKS_TESTS, "test_a_folder_of_a_newer_format_is_refused_and_left_as_it_is"),
    ),
    Mutant(
        "a-frozen-block-changes",
        "a snapshot is of its commit, whatever changes afterwards",
        _BLOCKS,
        "        if block.generation <= self._frozen_through:\n",
        "        if block.generation < self._frozen_through:\n",
        by_test(_STATES, _MEMORY + "test_a_snapshot_is_of_its_commit_whatever_changes_afterwards"),
    ),
    Mutant(
        "the-end-of-one-snapshot-ends-them-all",
        "a snapshot lives until it is closed itself",
        _BLOCKS,
        "max(self._frozen, default=-1)",
        "-1",
        by_test(_STATES, _MEMORY + "test_the_end_of_one_snapshot_is_not_that_of_another"),
    ),
    Mutant(
        "an-image-without-a-footer-is-whole",
        "a cut-short image is told from a whole one",
        _IMAGE,
        "    reader.end()\n",
        "",
        by_test(_IMAGE_TESTS, "test_an_image_that_lacks_any_entry_is_refused"),
    ),
    Mutant(
        "an-images-footer-is-not-compared",
        "the footer counts and hashes all rows",
        _IMAGE,
        "        if found != footer or self._pieces:\n",
        "        if self._pieces:\n",
        by_test(_IMAGE_TESTS, "test_rows_of_another_snapshot_do_not_pass_under_a_footer"),
    ),
    Mutant(
        "an-image-is-written-in-one-go",
        "a snapshot never stops proposals",
        _IMAGE,
        "            await pause()\n",
        "",
        by_test(_IMAGE_TESTS, "test_the_loop_is_free_between_slices_of_some_hundred_rows"),
    ),
    Mutant(
        "a-machine-scans-the-replicas-own-rows",
        "what depends on where batches were cut is not shown to a machine",
        "engine/state/memory.py",
        "self._blocks.rows(max(first, FIRST_ROW), end)",
        "self._blocks.rows(first, end)",
        by_test(
            "engine/replica/test_machines.py",
            "test_a_replay_is_what_was_live_though_the_machine_looks_at_every_row",
        ),
    ),
    Mutant(
        "a-stored-states-own-rows-are-shown",
        "keys that begin with a zero byte, and the mark, are not shown",
        _STORED,
        "        if key < FIRST_ROW:\n",
        "        if not key:\n",
        by_test(_STATES, _SIM + "test_keys_that_begin_with_a_zero_byte_are_not_shown"),
    ),
    Mutant(
        "whatever-rocksdb-says-is-damage",
        "a folder is called damaged, and to be removed, only when it is",
        _ROCKS,
        '    if text.startswith("Corruption") and "Too many open files" not in text:',
        "    if text:",
        by_test(
            _ROCKS_TESTS,
            "test_a_process_out_of_files_calls_a_state_neither_damaged_nor_locked",
        ),
    ),
)
