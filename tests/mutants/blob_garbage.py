"""Mutants of the collection of a store's garbage."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

_DYING: Final = "blobit/garbage/test_dying.py"
_COMPACTION: Final = "blobit/garbage/test_compaction.py"
_EXPIRY: Final = "blobit/garbage/test_expiry.py"
_ORPHANS: Final = "blobit/garbage/test_orphans.py"
_ROUNDS: Final = "blobit/garbage/test_rounds.py"
_PINNED: Final = "blobit/garbage/test_pinned.py"
_DELETION: Final = "blobit/contract/test_deletion.py"
_NOTHING_IS_PUT: Final = "test_nothing_is_put_into_a_bucket_after_its_deletion_has_returned"
_JOBS: Final = "blobit/staging/test_jobs.py"

BLOB_GARBAGE_MUTANTS: Final = (
    Mutant(
        "a-bucket-whose-deletion-was-cut-short-is-not-collected",
        "what was deleted in a bucket is collected though nobody ended the bucket's deletion",
        "blobit/garbage.py",
        'for row in rows if row["state"] != BucketState.BEING_MADE]',
        'for row in rows if row["state"] == BucketState.ACTIVE]',
        by_test(_ROUNDS, "test_a_bucket_whose_deletion_was_cut_short_is_collected_like_any_other"),
    ),
    Mutant(
        "a-dying-ledger-without-a-bucket-is-not-looked-for",
        "whoever finds a dying row finishes it",
        "blobit/garbage.py",
        'for table in ("homes", "dying"):',
        'for table in ("homes",):',
        by_test(
            "blobit/test_tablespace_pool.py",
            "test_a_put_while_a_late_home_is_removed_leaves_no_ledger[False]",
        ),
    ),
    Mutant(
        "the-removal-of-a-late-home-is-not-continued",
        "a removal that was cut short is continued",
        "blobit/garbage.py",
        "            if await _is_empty(scope) or await _is_shut(scope):",
        "            if await _is_empty(scope):",
        by_test(
            "blobit/test_tablespace_pool.py",
            "test_a_put_while_a_late_home_is_removed_leaves_no_ledger[True]",
        ),
    ),
    Mutant(
        "a-ledger-dies-whoever-names-it",
        "a transaction that names a ledger whose row has gone is refused",
        "blobit/tables.py",
        """PRIMARY KEY (ledger_id, bucket_id, owner, part),
        CONSTRAINT refs_ledger FOREIGN KEY (ledger_id) REFERENCES ledgers (ledger_id))""",
        "PRIMARY KEY (ledger_id, bucket_id, owner, part))",
        by_test(_DYING, "test_a_put_whose_ledger_died_while_it_slept_writes_its_data_again"),
    ),
    Mutant(
        "a-ledger-dies-whoever-names-it-in-the-simulation",
        "a transaction that names a ledger whose row has gone is refused",
        "blobit/tables.py",
        """PRIMARY KEY (ledger_id, bucket_id, owner, part),
        CONSTRAINT refs_ledger FOREIGN KEY (ledger_id) REFERENCES ledgers (ledger_id))""",
        "PRIMARY KEY (ledger_id, bucket_id, owner, part))",
        by_seeds(1, 6, "--blobs"),
    ),
    Mutant(
        "an-object-is-put-into-a-bucket-that-was-found-empty",
        "a bucket that is deleted because it is empty takes no object any more",
        "blobit/tables.py",
        """PRIMARY KEY (bucket_id, name),
        CONSTRAINT objects_open FOREIGN KEY (bucket_id) REFERENCES open_buckets (bucket_id))""",
        "PRIMARY KEY (bucket_id, name))",
        by_test(
            _ORPHANS,
            "test_a_put_that_sleeps_while_its_empty_bucket_is_deleted_is_refused",
        ),
    ),
    Mutant(
        "a-ledger-is-announced-when-it-is-there",
        "no ledger exists that nobody has heard of",
        "engine/ledger/client.py",
        """            if announce is not None:
                await announce(ledger_id)
            strict = survives is not None
            held = await self._create(context, ledger_id, quorums, chosen, strict, custom)
""",
        """            strict = survives is not None
            held = await self._create(context, ledger_id, quorums, chosen, strict, custom)
            if announce is not None:
                await announce(ledger_id)
""",
        by_test(
            "engine/ledger/test_refused.py",
            "test_no_ledger_exists_before_it_was_announced_and_no_try_takes_an_announced_id",
        ),
    ),
    Mutant(
        "old-ids-have-no-grace",
        "reads of old ids hold for a grace time",
        "blobit/dying.py",
        "    return since_ms + scope.settings.grace_ms <= scope.now_ms",
        "    return since_ms <= scope.now_ms",
        by_test(_DYING, "test_an_old_id_is_readable_as_long_as_the_grace"),
    ),
    Mutant(
        "a-dying-ledger-is-forgotten-before-it-is-gone",
        "whoever finds a dying row finishes it",
        "blobit/dying.py",
        "    except (EngineError, BlobError):\n        return False",
        "    except (EngineError, BlobError):\n        return True",
        by_test(_DYING, "test_a_round_that_was_cut_short_behind_the_row_is_finished_by_the_next"),
    ),
    Mutant(
        "ledgers-are-looked-at-when-they-are-sealed",
        "puts whose bytes lie in a ledger may be about to commit",
        "blobit/garbage.py",
        "self._settings.settle_ms > scope.now_ms:",
        "0 > scope.now_ms:",
        by_test(
            _DYING,
            "test_a_ledger_that_was_sealed_just_now_is_left_to_puts_that_are_about_to_commit",
        ),
    ),
    Mutant(
        "an-abandoned-ledger-is-not-recovered",
        "recovery fences a writer that was taken for dead",
        "blobit/sealing.py",
        "await scope.client.open_ledger(ledger_id)",
        "await scope.client.open_ledger(ledger_id, recover=False)",
        by_test(
            _DYING,
            "test_an_abandoned_ledger_is_sealed_and_its_writer_if_alive_takes_another",
        ),
    ),
    Mutant(
        "what-was-written-meanwhile-is-moved-away",
        "a name moves by compare-and-set on the old id",
        "blobit/compaction.py",
        'row["object_id"] != info.packed_id or row["etag"] != info.etag:',
        "False:",
        by_test(_COMPACTION, "test_what_changes_while_it_is_copied_stays_as_it_was_changed"),
    ),
    Mutant(
        "what-expires-is-compacted",
        "ledgers of objects that expire are never compacted",
        "blobit/garbage.py",
        'if row["kind"] != LedgerKind.NAMED or not weight.movable:',
        "if not weight.movable:",
        by_test(_EXPIRY, "test_ledgers_of_objects_that_expire_are_never_compacted_and_go_whole"),
    ),
    Mutant(
        "objects-leave-a-ledger-that-has-to-stay",
        "a ledger that holds what cannot move is not compacted",
        "blobit/garbage.py",
        'if row["kind"] != LedgerKind.NAMED or not weight.movable:',
        'if row["kind"] != LedgerKind.NAMED:',
        by_test(_COMPACTION, "test_a_ledger_that_holds_a_part_of_an_upload_waits_for_it"),
    ),
    Mutant(
        "shared-bytes-count-twice",
        "live bytes are those of ranges, not of names",
        "blobit/compaction.py",
        "        if packed_id not in self._ranges:",
        "        if True:",
        by_test(_COMPACTION, "test_what_two_names_share_is_copied_once"),
    ),
    Mutant(
        "copies-go-on-into-a-ledger-that-died",
        "a refused commit makes its pool take another ledger",
        "blobit/compaction.py",
        "                self._pool.forget(part.ledger_id)",
        "                pass",
        by_test(
            _COMPACTION,
            "test_copies_whose_ledger_was_collected_are_made_again_in_another",
        ),
    ),
    Mutant(
        "many-appends-stay-many",
        "a small object is put together while it moves",
        "blobit/compaction.py",
        "        if object_id.kind is Kind.LIST and object_id.length > self._whole_bytes_max:",
        "        if object_id.kind is Kind.LIST:",
        by_test(
            _COMPACTION,
            "test_an_object_of_many_appends_becomes_one_piece_when_it_moves",
        ),
    ),
    Mutant(
        "a-hint-of-an-expiry-counts",
        "what expires is decided by the object's own row",
        "blobit/expiry.py",
        "        if row is None or not is_expired(row, scope.now_ms):",
        "        if row is None:",
        by_test(
            _EXPIRY,
            "test_an_object_that_was_written_anew_outlives_the_time_of_the_old_one",
        ),
    ),
    Mutant(
        "ledgers-of-nobody-are-orphans",
        "only ledgers that say that they belong to a bucket are looked at",
        "blobit/orphans.py",
        '    return owned and custom.get("bucket", b"").isdigit()',
        "    return owned",
        by_test(
            _ORPHANS,
            "test_ledgers_of_others_and_of_objects_without_a_bucket_are_never_touched",
        ),
    ),
    Mutant(
        "a-dying-ledger-is-an-orphan",
        "a ledger that is dying keeps its bytes for the grace",
        "blobit/orphans.py",
        '    return await rows.get("dying", (ledger_id,)) is None',
        "    return True",
        by_test(_ORPHANS, "test_a_dying_ledger_of_a_deleted_bucket_is_no_orphan"),
    ),
    Mutant(
        "a-bucket-that-is-new-has-only-orphans",
        "where a ledger's row is is asked for after the ledger was seen",
        "blobit/garbage.py",
        """            if bucket_id not in spaces:
                # Only now: its ledger was seen, so it is here, or it is gone for good.
                moved = await self._blobs.moves.every()
                places = await self._tablespaces()
                # What is known of others stays: by that their rows were looked for.
                fresh = [each for each in places if each not in spaces]
                spaces.update({each: places[each] for each in fresh})
                moves.update({each: moved[each] for each in fresh if each in moved})
""",
        "",
        by_test(_ORPHANS, "test_a_bucket_that_is_made_while_a_round_goes_on_loses_nothing"),
    ),
    Mutant(
        "a-bucket-is-forgotten-before-its-ledgers-are-gone",
        "a deleted bucket is remembered until none of its ledgers is left",
        "blobit/bucket_removal.py",
        "    return len(gone) == len(dying)",
        "    return True",
        by_test(_ORPHANS, "test_of_a_deleted_bucket_nothing_is_left"),
    ),
    Mutant(
        "a-lost-removal-counts-as-done",
        "a deleted bucket is remembered until none of its ledgers is left",
        "blobit/dying.py",
        "        return True if found[key] is None else None\n\n"
        "    return Change((key,), lambda _: gone",
        "        return True\n\n    return Change((key,), lambda _: gone",
        by_test(_ORPHANS, "test_nothing_of_a_deleted_bucket_is_left_whichever_transaction_is_lost"),
    ),
    Mutant(
        "a-pinned-ledger-is-deleted",
        "what a pinned checkpoint names is not deleted",
        "blobit/dying.py",
        "    return [ledger_id for ledger_id in ledger_ids if ledger_id not in held]",
        "    return list(ledger_ids)",
        by_test(_PINNED, "test_what_a_pinned_checkpoint_names_is_readable_until_the_pin_ends"),
    ),
    Mutant(
        "a-row-deletes-any-ledger",
        "only a ledger that says that it is the bucket's is deleted",
        "blobit/dying.py",
        "    if not await _is_own(scope, ledger_id):\n        return False\n",
        "",
        by_test(_DYING, "test_a_row_that_names_a_ledger_of_somebody_else_deletes_nothing"),
    ),
    Mutant(
        "a-row-fences-any-ledger",
        "nobody's writer is fenced but one of the bucket's own ledgers",
        "blobit/sealing.py",
        "        if not is_of_bucket(metadata.custom, scope.bucket_id):",
        "        if False:",
        by_test(_DYING, "test_a_row_that_names_a_ledger_of_somebody_else_fences_no_writer"),
    ),
    Mutant(
        "what-is-pinned-is-guessed",
        "nothing is deleted while nobody can tell what is pinned",
        "blobit/dying.py",
        "        # Who holds what cannot be told now.\n        return []",
        "        # Who holds what cannot be told now.\n        return list(ledger_ids)",
        by_test(_PINNED, "test_nothing_is_deleted_while_nobody_can_tell_what_is_pinned"),
    ),
    Mutant(
        "a-job-holds-no-ledger",
        "no ledger of a task is collected before its job has ended",
        "blobit/staging/storing.py",
        "            await self._holding.part_ended(part)",
        "            pass",
        by_test(
            _JOBS,
            "test_what_is_stored_outlives_collection_until_the_job_ends",
        ),
    ),
    Mutant(
        "two-runs-hold-ledgers-under-one-name",
        "what a killed run held is let go by the run after it",
        "blobit/staging/naming.py",
        'return f"{job.name}.{run}.{task}"',
        'return f"{job.name}.{task}"',
        by_test(_JOBS, "test_a_run_that_was_killed_leaves_no_ledger_to_the_run_after_it"),
    ),
    Mutant(
        "a-job-that-fails-leaves-names",
        "a job without a key that cannot be named to its end takes its names back",
        "blobit/staging/naming.py",
        "                await naming.take_back()",
        "                pass",
        by_test(_JOBS, "test_a_job_without_a_key_that_fails_in_the_midst_takes_its_names_back"),
    ),
    Mutant(
        "a-name-is-taken-back-whoever-put-it-last",
        "a name that somebody else has put since is not taken back",
        "blobit/staging/naming.py",
        'for row, etag in named if row is not None and row["etag"] == etag]',
        "for row, etag in named if row is not None]",
        by_test(_JOBS, "test_a_name_that_somebody_else_has_put_since_is_not_taken_back"),
    ),
    Mutant(
        "a-line-is-read-by-two-shares",
        "all shares of an object together have every line once",
        "blobit/snapshot/lines.py",
        '    at = max(begin - 1, 0)\n    skipping, held = begin > 0, b""',
        '    at = begin\n    skipping, held = False, b""',
        by_test(
            "blobit/snapshot/test_lines.py",
            "test_all_shares_of_an_object_have_every_line_once",
        ),
    ),
    Mutant(
        "a-full-bucket-looks-deleted",
        "no share of a quota marks a deleted bucket",
        "blobit/counting.py",
        "_SHUT: Final = -(1 << 62)",
        "_SHUT: Final = -1",
        by_test(
            "blobit/contract/test_quotas.py",
            "TestEmbedded::test_a_bucket_that_holds_a_little_more_than_its_new_quota_stays_usable",
        ),
    ),
    Mutant(
        "an-earlier-program-opens-a-deleted-bucket",
        "counts stay shut if a program that does not know that divides the quota",
        "blobit/counting.py",
        "        row[most] is not None and _FROZEN_FROM < row[most] <= _SHUT_FROM for",
        "        row[most] is not None and row[most] == _SHUT for",
        by_test(
            "blobit/test_counting.py",
            "test_a_deleted_bucket_stays_shut_if_an_earlier_program_divides_its_quota",
        ),
    ),
    Mutant(
        "a-deleted-bucket-is-not-shut",
        "after a deletion has returned, nobody can change the bucket",
        "blobit/registry.py",
        "            raise\n        await self._shut(info)\n        return info\n",
        "            raise\n        return info\n",
        by_test(_DELETION, "TestEmbedded::" + _NOTHING_IS_PUT),
    ),
    Mutant(
        "a-deleted-bucket-is-not-shut-elsewhere",
        "after a deletion has returned, nobody can change the bucket",
        "blobit/committing.py",
        "                counting.check(pending.change.keys, pending.change.buckets)\n",
        "",
        by_test(_DELETION, "TestClustered::" + _NOTHING_IS_PUT),
    ),
    Mutant(
        "parts-come-into-a-deleted-bucket",
        "uploads change only while their bucket is there, as objects do",
        "blobit/counting.py",
        '_OF_BUCKETS: Final = frozenset({"objects", "open_buckets", "uploads"})',
        '_OF_BUCKETS: Final = frozenset({"objects", "open_buckets"})',
        by_test(_DELETION, "TestEmbedded::" + _NOTHING_IS_PUT),
    ),
    Mutant(
        "objects-without-a-name-come-into-a-deleted-bucket",
        "a change that reads no row of `objects` also checks the bucket's counts",
        "blobit/counting.py",
        '_OF_BUCKETS: Final = frozenset({"objects", "open_buckets", "uploads"})',
        '_OF_BUCKETS: Final = frozenset({"objects", "uploads"})',
        by_test(_DELETION, "TestEmbedded::" + _NOTHING_IS_PUT),
    ),
    Mutant(
        "a-quota-opens-a-deleted-bucket",
        "counts that are shut stay shut",
        "blobit/quotas.py",
        "        core.check_counts(there.values())\n",
        "",
        by_test(_DELETION, "TestEmbedded::" + _NOTHING_IS_PUT),
    ),
    Mutant(
        "the-collection-does-not-end-a-deletion",
        "nothing is removed before the bucket is shut",
        "blobit/bucket_removal.py",
        "    await shut_bucket(scope.committer, scope.bucket_id)\n",
        "",
        by_test(
            _DELETION,
            "TestEmbedded::test_garbage_collection_completes_an_interrupted_deletion",
        ),
    ),
    Mutant(
        "an-upload-goes-though-it-was-renewed",
        "a round ends only uploads that have expired by now",
        "blobit/expiry.py",
        "        if expired_by_ms is not None and not is_expired(row, expired_by_ms):\n",
        "        if False:\n",
        by_test(
            _EXPIRY,
            "test_an_upload_renewed_while_a_round_looks_at_it_keeps_its_parts",
        ),
    ),
    Mutant(
        "a-mark-goes-though-it-was-renewed",
        "an upload is removed only if it has not changed since it was read",
        "blobit/expiry.py",
        """        if (row["revision"], row["expires_ms"]) != seen:""",
        """        if row["revision"] != seen[0]:""",
        by_test(_EXPIRY, "test_a_mark_that_is_renewed_while_a_round_looks_at_it_is_kept"),
    ),
    Mutant(
        "a-hint-goes-before-its-object",
        "a hint is taken only when the object is over by every clock",
        "blobit/expiry.py",
        "    last = (scope.bucket_id, scope.now_ms - CLOCK_DIFFERENCE_MS)\n",
        "    last = (scope.bucket_id, scope.now_ms)\n",
        by_test(_EXPIRY, "test_an_object_is_invisible_from_its_time_on_and_a_round_removes_it"),
    ),
    Mutant(
        "a-readers-pin-ends-by-another-clock",
        "the bytes that a pin holds are kept until the pin has expired by every clock",
        "blobit/pinned.py",
        "if pin.number in records and not is_over(pin.expires_ms, now_ms)",
        "if pin.number in records and not is_over(pin.expires_ms, now_ms, 0)",
        by_test(_PINNED, "test_what_a_pinned_checkpoint_names_is_readable_until_the_pin_ends"),
    ),
    Mutant(
        "parts-stay-where-their-list-was",
        "an object of several parts comes to rest",
        "blobit/compaction.py",
        "            await self._open_home(object_id)\n",
        "",
        by_test(
            "blobit/garbage/test_compaction.py",
            "test_an_object_of_parts_in_several_ledgers_comes_to_rest",
        ),
    ),
)
