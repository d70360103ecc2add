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
    Mutant(
        "newcomers-take-the-last-files",
        "the last open files are for who is there already",
        "engine/ports/system_files.py",
        "files - reserves * reserve_of(files)",
        "files",
        by_test(
            "engine/ports/test_system_files.py",
            "test_an_eighth_is_kept_for_who_is_there_and_never_more_than_256",
        ),
    ),
    Mutant(
        "a-port-takes-the-last-files",
        "a port hangs up while few files are left",
        "engine/transport/listening.py",
        "not are_short(end.fileno(), reserves=0.5)",
        "True",
        by_test(
            "engine/ports/test_system_files.py",
            "test_a_port_hangs_up_while_files_are_short_and_takes_connections_after_it",
        ),
    ),
    Mutant(
        "one-clock-says-what-is-over",
        "what is over is over by this machine's clock and by the server's",
        "engine/ledger/cluster_time.py",
        "return min(await self._times_ms())",
        "return max(await self._times_ms())",
        by_test(
            "engine/ledger/test_cluster_time.py",
            "test_a_clock_that_jumps_ends_nothing_early_and_is_told",
        ),
    ),
    Mutant(
        "a-pin-begins-by-the-earlier-clock",
        "a pin lasts from the later of two clocks on",
        "herd/checkpoint/record.py",
        "expires_ms = latest_ms + expires_in_ms",
        "expires_ms = now_ms + expires_in_ms",
        by_test(
            "engine/ledger/test_cluster_time.py",
            "test_a_pinned_checkpoint_stays_though_two_machines_are_an_hour_apart",
        ),
    ),
    Mutant(
        "a-newer-version-is-not-written",
        "who raises the version of a value writes it",
        "engine/metadata/majors.py",
        "msgspec.structs.replace(value, format_major=major)",
        "value",
        by_test(
            "engine/metadata/test_majors.py",
            "test_a_value_of_a_newer_version_is_refused_though_its_fields_are_the_same",
        ),
    ),
    Mutant(
        "a-start-does-not-look-at-the-journal",
        "a start on a newer journal changes nothing",
        "engine/bookie/folder.py",
        "    check_format(disk)\n    return identity",
        "    return identity",
        by_test(
            "operate/test_downgrade.py",
            "test_what_a_newer_version_wrote_is_refused_in_one_line_that_says_what_to_do",
        ),
    ),
)
