"""Mutants of quotas of tenants, the log of slow operations, scrubs, and disks of no use."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_QUOTAS: Final = "broker/service/test_quotas.py"

OPERATIONS_MUTANTS: Final = (
    Mutant(
        "a-quota-forgets-what-is-on-its-way",
        "what is on its way to the log counts against a quota",
        "broker/leading/quotas.py",
        "    tasks = room.tasks + room.taken",
        "    tasks = room.tasks",
        by_test(_QUOTAS, "test_submits_at_the_same_moment_do_not_pass_the_quota_together"),
    ),
    Mutant(
        "a-batch-that-is-one-is-taken-in-part",
        "of an atomic batch nothing is taken if one task has no room",
        "broker/leading/quotas.py",
        "        if as_one:",
        "        if False:",
        by_test(_QUOTAS, "test_of_an_atomic_batch_none_is_taken_where_one_has_no_room"),
    ),
    Mutant(
        "a-shape-shows-values",
        "a line of the log of slow operations holds no value",
        "herd/sql/shape.py",
        "        literal = any(kind in token.token_type.name for kind in _LITERALS)",
        "        literal = False",
        by_test("engine/test_slow.py", "test_a_shape_has_no_value_in_it"),
    ),
    Mutant(
        "slow-operations-flood-the-log",
        "more lines than were asked for are not written",
        "engine/slow.py",
        "        if self._left < 1:",
        "        if False:",
        by_test(
            "engine/test_slow.py",
            "test_more_lines_than_a_second_takes_are_counted_and_told_with_the_next",
        ),
    ),
    Mutant(
        "a-scrub-reads-what-an-empty-ledger-has-not",
        "a ledger that was closed empty lacks nothing",
        "engine/repair/replicas.py",
        "        self._left = [ids] if ids[0] <= ids[1] else []",
        "        self._left = [ids]",
        by_test(
            "engine/repair/test_told.py",
            "test_a_scrub_finds_nothing_wrong_with_a_ledger_that_was_closed_empty",
        ),
    ),
    Mutant(
        "a-disk-that-cannot-be-written-ends-the-others",
        "one disk of no use keeps no other bookie of its machine from starting",
        "engine/server.py",
        "            except (FolderDamaged, BookieUnavailable, Overloaded, OSError) as error:",
        "            except FolderDamaged as error:",
        by_test(
            "engine/test_server.py",
            "test_a_folder_that_cannot_be_written_is_left_out_and_the_others_serve",
        ),
    ),
    Mutant(
        "a-damaged-identity-ends-the-process",
        "a folder that cannot be read keeps no other from remembering its cluster",
        "herdbook/bookie_cluster.py",
        "            except (FolderDamaged, OSError) as error:",
        "            except OSError as error:",
        by_test(
            "herdbook/test_bookie_cluster.py",
            "test_one_folder_of_three_with_a_damaged_identity_does_not_end_the_process",
        ),
    ),
)
