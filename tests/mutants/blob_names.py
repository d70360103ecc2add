"""Mutants of buckets and of the names of objects."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_COMMITTING: Final = "blobit/test_committing.py"
_OBJECTS: Final = "blobit/contract/test_objects.py::TestEmbedded"
_PARTS: Final = "blobit/contract/test_parts.py::TestEmbedded"
_BUCKETS: Final = "blobit/contract/test_buckets.py::TestEmbedded"
_LISTING: Final = "blobit/contract/test_listing.py::TestEmbedded"
_OWNERSHIP: Final = "blobit/test_ownership.py"
_QUOTAS: Final = "blobit/contract/test_quotas.py::TestEmbedded"
_POOL: Final = "blobit/test_tablespace_pool.py"
_LOST: Final = "blobit/contract/test_lost_answers.py"

BLOB_NAME_MUTANTS: Final = (
    Mutant(
        "a-share-of-a-quota-is-no-limit",
        "no change takes a count above its share",
        "blobit/counting.py",
        "            raise Crowded(bucket_id)\n",
        "            return\n",
        by_test(_QUOTAS, "test_many_who_put_at_once_fill_a_bucket_to_its_quota_and_never_over_it"),
    ),
    Mutant(
        "what-a-put-replaces-is-counted-on",
        "the counts are what the rows of objects are",
        "blobit/counting.py",
        '                objects, size_bytes = objects - 1, size_bytes - before["length"]\n',
        "                objects = objects - 1\n",
        by_test(_QUOTAS, "test_overwriting_counts_the_difference_and_deleting_gives_back_at_once"),
    ),
    Mutant(
        "what-was-counted-on-the-way-that-failed-is-counted-twice",
        "what a batch adds is counted anew by whoever decides it anew",
        "blobit/counting.py",
        "        self._found = found\n        self._added = {}\n",
        "        self._found = found\n",
        by_test(
            "blobit/test_at_once.py",
            "test_what_was_counted_before_a_put_takes_the_long_way_is_counted_once",
        ),
    ),
    Mutant(
        "an-overwritten-object-keeps-what-it-had",
        "what a row of objects named before is let go in the transaction that replaces it",
        "blobit/bucket_core.py",
        "            self.ref_key(owner, *pair): None for pair in before if pair not in same\n",
        "            self.ref_key(owner, *pair): None for pair in before if pair in same\n",
        by_test(_OBJECTS, "test_overwriting_frees_what_was_there"),
    ),
    Mutant(
        "a-lost-list-holds-its-ledgers-for-ever",
        "what an object holds is known by its rows when its list cannot be read",
        "blobit/bucket_core.py",
        "        except (BlobUnreadable, BlobNotFound):\n",
        "        except BlobNotFound:\n",
        by_test(_PARTS, "test_what_an_object_holds_is_known_when_its_list_is_lost_for_good"),
    ),
    Mutant(
        "an-object-is-made-of-the-parts-that-are-known",
        "parts are put together only if they are all there",
        "blobit/bucket_core.py",
        "    if sum(part.length for part in parts) != object_id.length:\n",
        "    if not parts:\n",
        by_test(_PARTS, "test_parts_that_do_not_add_up_are_never_put_together"),
    ),
    Mutant(
        "a-change-is-decided-by-what-was-there-before-the-batch",
        "a change is decided on the rows as the one before it leaves them",
        "blobit/committing.py",
        "                if key in found:\n",
        "                if key in found and not key:\n",
        by_test(_COMMITTING, "test_a_change_is_decided_by_what_the_one_before_leaves"),
    ),
    Mutant(
        "an-unknown-outcome-is-taken-for-a-failure",
        "what carries the change's own mark has happened",
        "blobit/committing.py",
        "            shown = pending.change.confirm(found) if known else None\n",
        "            shown = None\n",
        by_test(_COMMITTING, "test_a_commit_of_unknown_outcome_is_found_out_by_its_own_mark"),
    ),
    Mutant(
        "a-rename-takes-anothers-object-for-its-own",
        "a rename is not confirmed by the object that has the new name",
        "blobit/renaming.py",
        "    return await core.commit(Change((old, new), decide, lambda found: None), known)\n\n\n"
        "async def copy",
        "    return await core.commit(\n"
        "        Change((old, new), decide, lambda found: core.alive(found[new])), known\n"
        "    )\n\n\n"
        "async def copy",
        by_test(_LOST, "test_a_rename_that_was_not_done_is_not_taken_for_done_by_what_others_do"),
    ),
    Mutant(
        "a-token-has-many-texts",
        "a token with one character changed is refused",
        "blobit/naming.py",
        '    canonical = base64.urlsafe_b64encode(packed).rstrip(b"=") == token.encode()\n',
        "    canonical = True\n",
        by_test(_LISTING, "test_a_token_that_is_not_of_this_listing_is_refused"),
    ),
    Mutant(
        "a-tablespace-that-somebody-named-is-dropped",
        "a tablespace that the store did not make itself is never dropped",
        "blobit/registry.py",
        "        if not is_own(tablespace, name, bucket_id):\n",
        "        if tablespace == REGISTRY:\n",
        by_test(_BUCKETS, "test_a_tablespace_that_somebody_named_is_never_dropped"),
    ),
    Mutant(
        "a-tablespace-takes-more-buckets-than-it-may",
        "a bucket is refused by a tablespace that others have filled meanwhile",
        "blobit/tablespace_pool.py",
        '    if row["buckets"] >= limits.buckets:\n        raise PoolFull(',
        '    if row["buckets"] > 10 * limits.buckets:\n        raise PoolFull(',
        by_test(
            _POOL,
            "test_whoever_creates_at_once_no_tablespace_has_more_buckets_than_it_may",
        ),
    ),
    Mutant(
        "a-forgotten-bucket-is-counted-on",
        "a bucket is counted until it is forgotten",
        "blobit/registry.py",
        ", move_key: None, **left(found.get(pool_key))}, True)\n",
        ", move_key: None}, True)\n",
        by_test(
            _POOL,
            "test_the_pool_grows_when_a_tablespace_has_its_buckets_and_fills_up_what_was_left",
        ),
    ),
    Mutant(
        "older-versions-drop-what-buckets-share",
        "a tablespace of the pool is written down as a named one",
        "blobit/tables.py",
        '        kept["tablespace"] = tablespace\n',
        "        pass\n",
        by_test(_POOL, "test_a_version_that_knows_of_no_pool_takes_its_tablespaces_for_named_ones"),
    ),
    Mutant(
        "a-slow-stream-is-held-by-nothing",
        "a part is held from the moment in which it has ended until its object has a name",
        "blobit/holding.py",
        "            **core.refs(upload_owner(self._upload_id), [(number * PART_ROOM, part)]),\n",
        "",
        by_test(_OBJECTS, "test_what_a_slow_stream_has_stored_is_held_until_it_has_its_name"),
    ),
    Mutant(
        "a-bucket-reads-any-ledger",
        "readers of a bucket hand out nothing of another's ledger",
        "blobit/reading.py",
        "                self.check_owner(part, opened.bucket_id)\n",
        "",
        by_test(
            _OWNERSHIP,
            "test_a_row_that_names_an_object_of_another_bucket_hands_out_nothing[small]",
        ),
    ),
    Mutant(
        "what-is-read-ahead-is-anybodys",
        "nothing that was read ahead for one bucket is handed out to another",
        "blobit/reading.py",
        " and self._may_read(opened.bucket_id):",
        ":",
        by_test(_OWNERSHIP, "test_what_was_read_ahead_for_a_bucket_is_handed_out_to_no_other"),
    ),
    Mutant(
        "who-takes-over-goes-on-asking-elsewhere",
        "a folder's tablespaces that run here now have tables of here",
        "blobit/rows.py",
        "            if self._at_once is None:\n                self._tables =",
        "            if self._closed:\n                self._tables =",
        by_test(
            "blobit/contract/test_openers.py",
            "test_who_takes_over_from_the_owner_that_closed_puts_deletes_and_makes_buckets[a put]",
        ),
    ),
)
