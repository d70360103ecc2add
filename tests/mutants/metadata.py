"""Mutants of the metadata: compare-and-set, tokens, identity, the local store's own log."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_LEDGERS: Final = "engine/metadata/ledgers.py"
_LEDGER_TESTS: Final = "engine/metadata/test_ledgers.py"
_LOCAL_TESTS: Final = "engine/metadata/test_local.py"

METADATA_MUTANTS: Final = (
    Mutant(
        "writes-without-compare",
        "1b: metadata change by compare-and-set only",
        "engine/metadata/tree.py",
        "if found.version != version:",
        "if found.version < version:",
        by_test(_LEDGER_TESTS, "test_a_conflict_is_decided_anew_on_the_fresh_value"),
    ),
    Mutant(
        "own-token-is-not-recognised",
        "design 4.2-7: after a lost reply the loop takes its own token as success",
        _LEDGERS,
        "                if held.metadata.token == token:\n                    return held\n",
        "",
        by_test(_LEDGER_TESTS, "test_an_update_whose_reply_was_lost_is_made_once"),
    ),
    Mutant(
        "own-creation-is-not-recognised",
        "design 4.2-7: a creation whose reply was lost is no conflict",
        _LEDGERS,
        "if held is not None and held.metadata.token == metadata.token:",
        "if held is not None and held.metadata.token < 0:",
        by_test(_LEDGER_TESTS, "test_a_creation_whose_reply_was_lost_is_recognised_by_its_token"),
    ),
    Mutant(
        "a-conflict-is-decided-on-the-old-value",
        "1b: after a conflict the change is asked again with the fresh value",
        _LEDGERS,
        "                held = await self.read(wanted.ledger_id)\n",
        "                fresh = await self.read(wanted.ledger_id)\n"
        "                held = Held(held.metadata, fresh.version)\n",
        by_test(_LEDGER_TESTS, "test_a_conflict_is_decided_anew_on_the_fresh_value"),
    ),
    Mutant(
        "states-go-back",
        "1b: OPEN, IN_RECOVERY, CLOSED, and never back",
        _LEDGERS,
        "    assert _ORDER.index(new.state) >= _ORDER.index(old.state), (old.state, new.state)\n",
        "",
        by_test(_LEDGER_TESTS, "test_a_state_never_goes_back"),
    ),
    Mutant(
        "a-closed-end-changes",
        "design 4.1-4: a closed ledger's last entry never changes",
        _LEDGERS,
        "assert (new.last_entry, new.length) == (old.last_entry, old.length)",
        "assert new.closed",
        by_test(_LEDGER_TESTS, "test_the_end_of_a_closed_ledger_never_changes"),
    ),
    Mutant(
        "two-fragments-start-at-one-entry",
        "2.3-2: a fragment that starts where the last one does replaces it",
        _LEDGERS,
        "if kept[-1].first == first:",
        "if kept[-1].first > first:",
        by_test(_LEDGER_TESTS, "test_a_fragment_at_the_last_ones_start_replaces_it"),
    ),
    Mutant(
        "a-rolled-back-folder-starts",
        "2.6-4 (#2612), design 4.3: a folder behind the store's boot count does not start",
        "engine/metadata/bookies.py",
        "if versioned is not None and FolderAge.unpack(versioned.value) > age:",
        "if versioned is None:",
        by_test("engine/metadata/test_bookies.py", "test_a_folder_that_was_put_back_is_refused"),
    ),
    Mutant(
        "a-folder-rolled-back-by-one-start-starts",
        "the folder holds each count before the store does, so one start behind is rolled back",
        "engine/bookie/folder.py",
        "    write_identity(disk, started)\n    try:\n        await bookies.raise_age",
        "    try:\n        await bookies.raise_age",
        by_test(
            "engine/bookie/test_folder.py",
            "test_what_the_store_remembers_the_folder_held_before",
        ),
    ),
    Mutant(
        "two-copies-of-a-folder-share-an-age",
        "an age that the store holds already is another copy's",
        "engine/metadata/bookies.py",
        "                if stored >= age:\n",
        "                if stored > age:\n",
        by_test(
            "engine/bookie/test_folder.py",
            "test_of_two_copies_started_at_once_one_runs_and_the_other_never_does",
        ),
    ),
    Mutant(
        "a-bookie-that-ended-well-leaves-no-mark",
        "a copy made while a bookie ran is old once it has ended well",
        "engine/bookie/service.py",
        "            await self._marker.mark()\n",
        "            pass\n",
        by_test(
            "engine/bookie/test_service_identity.py",
            "test_a_copy_made_while_the_bookie_ran_does_not_start_once_it_has_ended_well",
        ),
    ),
    Mutant(
        "another-clusters-folder-starts",
        "design 4.3: folder and metadata store hold the same cluster id",
        "engine/bookie/folder.py",
        "elif identity.cluster_id != cluster_id:",
        "elif not cluster_id:",
        by_test(
            "engine/bookie/test_folder.py",
            "test_a_folder_of_another_cluster_is_refused_and_unchanged",
        ),
    ),
    Mutant(
        "metadata-are-seen-before-they-are-durable",
        "design 4.3: nothing is told before it is durable",
        "engine/metadata/local.py",
        "        self._writes[name] = job.answer\n",
        "        self._writes[name] = job.answer\n        self.tree.make(change)\n",
        by_test(_LOCAL_TESTS, "test_a_value_is_not_seen_before_it_is_durable"),
    ),
    Mutant(
        "metadata-sync-is-retried",
        "fsyncgate: a failed sync ends the metadata log",
        "engine/metadata/facts_log.py",
        "        self._failed = True\n        self._file.sync()\n",
        "        self._file.sync()\n",
        by_test(_LOCAL_TESTS, "test_nothing_is_written_behind_a_sync_that_failed"),
    ),
    Mutant(
        "damaged-metadata-pass-for-a-torn-tail",
        "#2908: damage is told from a torn write",
        "engine/metadata/facts_format.py",
        "    if _has_batch_after(data, offset, sequence):\n",
        "    if offset < 0:\n",
        by_test(
            _LOCAL_TESTS, "test_a_flipped_bit_in_any_synced_byte_is_damage_and_changes_nothing"
        ),
    ),
    Mutant(
        "a-read-passes-a-cancelled-write-of-a-folder",
        "a read waits for a write whose caller was cancelled",
        "engine/metadata/session.py",
        "            self._abandoned.add(name, writing)\n",
        "",
        by_test(
            "engine/metadata/test_local.py::TestLocalStore",
            "test_a_write_that_was_cancelled_is_seen_by_the_next_read_or_never_happens",
        ),
    ),
    Mutant(
        "a-read-passes-a-cancelled-write-on-a-connection",
        "a read waits for a write whose caller was cancelled",
        "engine/metadata/remote.py",
        "        await self._abandoned.settled(path, self._settings.request_timeout_ms / 1000)\n",
        "        return\n",
        by_test(
            "engine/metadata/test_remote.py",
            "test_the_next_read_sees_the_outcome_of_a_cancelled_write_to_a_folder",
        ),
    ),
    Mutant(
        "a-cancelled-write-holds-all-reads-of-its-session",
        "a cancelled write holds only reads of its key, and of the names above it",
        "engine/metadata/session.py",
        '    return name == path or (path.endswith("/") and name.startswith(path))\n',
        "    return True\n",
        by_test(
            _LOCAL_TESTS,
            "test_a_stuck_cancelled_write_holds_only_reads_of_its_key_in_its_session",
        ),
    ),
    Mutant(
        "a-read-waits-for-ever-for-a-cancelled-write",
        "a read waits for a cancelled write for at most the request timeout",
        "engine/metadata/session.py",
        "            if missing:\n",
        "            if missing and timeout_s is None:\n",
        by_test(
            _LOCAL_TESTS,
            "test_a_read_does_not_wait_for_a_cancelled_write_longer_than_its_timeout",
        ),
    ),
    Mutant(
        "a-cancelled-write-that-is-late-is-forgotten",
        "a cancelled write on a connection holds reads until its answer can no longer arrive",
        "engine/transport/framed_client.py",
        "        if isinstance(waits, PendingCall) and waits.abandoned:\n",
        "        if isinstance(waits, PendingCall) and waits.abandoned and not waits.lasts:\n",
        by_test(
            "engine/metadata/test_remote.py",
            "test_a_cancelled_write_that_is_late_still_holds_the_reads_of_its_key",
        ),
    ),
    Mutant(
        "an-empty-folder-makes-a-new-bookie",
        "an empty folder where a bookie has its data is refused",
        "engine/metadata/bookies.py",
        "        if not expected:\n            return\n",
        "        return\n",
        by_test(
            "engine/test_lost_folders.py",
            "test_an_empty_folder_where_a_bookie_has_its_data_is_refused_and_stays_empty",
        ),
    ),
    Mutant(
        "a-copy-starts-beside-the-running-original",
        "a copy of a folder whose bookie runs elsewhere does not start",
        "engine/server.py",
        "        if await listens(found.address):",
        "        if False:",
        by_test(
            "engine/test_lost_folders.py",
            "test_a_copy_of_a_running_bookies_folder_does_not_start_elsewhere",
        ),
    ),
    Mutant(
        "a-new-journal-is-taken-for-the-old-one",
        "a bookie without its journal does not start",
        "engine/bookie/folder.py",
        "identity.boot and not _has_journal(disk, identity):",
        "False:",
        by_test(
            "engine/test_lost_folders.py", "test_a_bookie_whose_journal_is_gone_does_not_start"
        ),
    ),
    Mutant(
        "a-disk-is-used-below-its-mount-point",
        "nothing is made in place of a root that vanished",
        "engine/ports/system_disk.py",
        "if self._identity is not None and self._look() != self._identity:",
        "if False:",
        by_test(
            "engine/test_lost_folders.py",
            "test_a_disk_makes_nothing_below_a_root_that_vanished",
        ),
    ),
    Mutant(
        "a-refused-mark-is-swallowed",
        "a bookie stops when it learns of a copy of its folder",
        "engine/bookie/marking.py",
        "            self.on_superseded(error)\n",
        "",
        by_test(
            "engine/bookie/test_service_identity.py",
            "test_a_bookie_that_did_not_see_a_copy_stops_at_its_next_mark",
        ),
    ),
    Mutant(
        "a-newer-start-is-not-looked-at",
        "a bookie that sees a newer start of its folder registered stops",
        "engine/bookie/publishing.py",
        "                    self.on_superseded(error)\n",
        "",
        by_test(
            "engine/bookie/test_service_identity.py",
            "test_a_bookie_stops_when_a_copy_of_its_folder_is_registered",
        ),
    ),
    Mutant(
        "an-older-start-takes-a-newer-ones-registration-away",
        "an older start does not remove the registration of a newer one",
        "engine/metadata/bookies.py",
        "            if found is not None and found.boot > boot:\n                return\n",
        "",
        by_test(
            "engine/bookie/test_service_identity.py",
            "test_a_registration_that_an_older_start_replaced_is_made_again",
        ),
    ),
    Mutant(
        "an-older-start-replaces-a-newer-ones-registration",
        "an older start does not replace the registration of a newer one",
        "engine/metadata/bookies.py",
        "            await self.check_newest(registration.bookie_id, registration.boot)\n",
        "",
        by_test(
            "engine/bookie/test_service_identity.py",
            "test_a_registration_that_an_older_start_replaced_is_made_again",
        ),
    ),
)
