"""Mutants of removals: what a log and a tablespace leave to the next of their name."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

_CHECKPOINTS: Final = "herd/checkpoint/record.py"
_DROPPING: Final = "herd/nodes/dropping.py"
_FOLLOWING: Final = "engine/replica/following.py"
_LIST: Final = "engine/log/log_list.py"
_LOG: Final = "engine/log/log.py"
_LOST: Final = "engine/metadata/lost_logs.py"
_RESTORING: Final = "herd/nodes/restoring.py"
_SNAPSHOTS: Final = "engine/replica/snapshots.py"
_AUDITOR: Final = "herd/nodes/auditor.py"
_AGAIN_TESTS: Final = "herd/nodes/test_names_again.py"
_LOG_TESTS: Final = "engine/log/test_removing.py"
_REPLICA_TESTS: Final = "engine/replica/test_removed.py"
_DROPS_TESTS: Final = "herd/nodes/test_drops.py"
_RETRIED: Final = by_test(
    _DROPS_TESTS,
    "test_a_removal_that_keeps_failing_delays_nothing_else_and_backs_off",
)
_LATE: Final = by_test(_LOG_TESTS, "test_a_removal_that_is_late_changes_nothing_of_the_next_log")
_A_TERM: Final = by_test(_LOG_TESTS, "test_a_removal_is_a_term_that_leaves_nothing_but_its_epoch")
_SWEEP: Final = "test_an_auditor_that_was_paused_in_a_sweep_touches_nothing_of_the_next_tablespace"

REMOVAL_MUTANTS: Final = (
    Mutant(
        "a-removal-goes-on-without-having-asked-for-the-last-ledger",
        "no leader from before a removal gets anything acknowledged after it",
        _LOG,
        "        except MetadataUnavailable:\n            raise\n"
        "        except EngineError as error:",
        "        except MetadataUnavailable:\n            pass\n"
        "        except EngineError as error:",
        by_test(
            _LOG_TESTS,
            "test_a_removal_that_cannot_fence_the_last_leader_without_metadata_is_started_again",
        ),
    ),
    Mutant(
        "a-removal-does-not-fence-the-last-ledger-in-the-simulation",
        "no leader from before a removal gets anything acknowledged after it",
        _LOG,
        "        await self._fence_last(held.list)\n",
        "        await self.list()\n",
        by_seeds(6016, 3, "--log"),
    ),
    Mutant(
        "a-removal-goes-on-without-a-fence",
        "a log is not removed before the bookies of its last ledger were fenced",
        _LOG,
        "        except NoSuchLedger:\n            # Deleting it",
        "        except EngineError:\n            # Deleting it",
        by_test(
            _LOG_TESTS,
            "test_a_log_is_not_removed_before_the_bookies_of_its_last_ledger_were_fenced",
        ),
    ),
    Mutant(
        "a-removal-requires-a-complete-recovery",
        "a log is removed once its last ledger is fenced, even if its end is unknown",
        _LOG,
        "            except RecoveryIncomplete:\n                # Bookies",
        "            except ZeroDivisionError:\n                # Bookies",
        by_test(
            _LOG_TESTS,
            "test_a_log_is_removed_even_if_full_disks_reject_the_writes_of_a_recovery",
        ),
    ),
    Mutant(
        "a-failed-removal-is-retried-at-once",
        "a failed removal is retried with increasing delays",
        _AUDITOR,
        "        self.not_before_s = now_s + self.pause_s\n",
        "        self.not_before_s = now_s\n",
        _RETRIED,
    ),
    Mutant(
        "the-auditor-waits-for-a-removal",
        "a removal that hangs delays nothing else",
        _AUDITOR,
        "                self._sweep(name, fact)\n",
        "                self._sweep(name, fact)\n"
        "                for one in self._sweeps.values():\n"
        "                    await asyncio.gather(*([one.running] if one.running else []))\n",
        _RETRIED,
    ),
    Mutant(
        "a-closing-replica-is-not-reported",
        "a dropped tablespace is swept only when none of its replicas runs",
        "herd/nodes/node.py",
        "        replicas = {name: ReplicaReport(uuid, ENDING) for uuid, name in ending}\n",
        "        replicas = dict[str, ReplicaReport]()\n",
        by_test(
            _DROPS_TESTS, "test_a_tablespace_is_not_swept_while_one_of_its_replicas_is_closing"
        ),
    ),
    Mutant(
        "a-checkpoint-that-cannot-be-listed-is-kept",
        "a deposed leader deletes the checkpoint that it cannot add to the list",
        "herd/checkpoint/taking.py",
        "                await _dropped(self._client, record.locator.ledger_id)\n"
        "                raise\n",
        "                raise\n",
        by_test(
            "herd/checkpoint/test_building.py",
            "test_a_deposed_leader_deletes_the_checkpoint_that_it_cannot_list",
        ),
    ),
    Mutant(
        "a-removal-does-not-look-whether-it-is-to-be",
        "a name is another's once the log before it was removed",
        _LOG,
        "        if not await still():\n",
        "        if await still() is None:\n",
        by_test(_LOG_TESTS, "test_a_log_that_is_not_to_go_stays_as_it_is"),
    ),
    Mutant(
        "a-removal-looks-before-it-has-read-the-epoch",
        "as long as the log is to go, the epoch that was read before is its own",
        _LOG,
        "        held = await self._lists.read_fresh()\n"
        "        # In this order: as long as the log is to go, the epoch just read is its own.\n"
        "        if not await still():\n"
        '            raise Deposed(f"log {self.name} is not to be removed any more")\n',
        "        if not await still():\n"
        '            raise Deposed(f"log {self.name} is not to be removed any more")\n'
        "        held = await self._lists.read_fresh()\n",
        _LATE,
    ),
    Mutant(
        "a-removal-ends-whatever-epoch-there-is",
        "a removal raises the epoch that it has read, and no other one",
        _LOG,
        "self._lists.update(held, raised_from(held.list.epoch))\n"
        "        epoch = held.list.epoch\n        await self._fence_last",
        "self._lists.update(held, lambda now: raised_from(now.epoch)(now))\n"
        "        epoch = held.list.epoch\n        await self._fence_last",
        _LATE,
    ),
    Mutant(
        "a-removal-empties-whatever-list-there-is",
        "a list is emptied only in the term of its removal",
        _LIST,
        "        check_epoch(current, epoch)\n        return emptied(current)\n",
        "        return emptied(current)\n",
        by_test(_LOG_TESTS, "test_a_log_that_begins_before_the_list_is_emptied_keeps_its_ledger"),
    ),
    Mutant(
        "a-removal-does-not-fence",
        "the last ledger is closed: whoever writes it has nothing acknowledged any more",
        _LOG,
        "        await self._fence_last(held.list)\n",
        "",
        _A_TERM,
    ),
    Mutant(
        "a-removal-leaves-its-ledgers-on-the-list",
        "nothing is left of a log that was removed but its epoch",
        _LOG,
        "        await self._lists.update(held, removing(epoch))\n",
        "",
        _A_TERM,
    ),
    Mutant(
        "positions-of-removed-logs-are-known",
        "a position before the first ledger is one of a log that was removed",
        _LIST,
        "        return position == START or 0 < self.first_ledger <= position.ledger\n",
        "        return position >= START\n",
        by_test(_LOG_TESTS, "test_a_position_of_the_removed_log_is_none_of_the_next_one"),
    ),
    Mutant(
        "a-state-of-a-removed-log-goes-on",
        "a state of a log that was removed says nothing of the next one of its name",
        _FOLLOWING,
        "            kept = listed.keeps_after(position)\n",
        "            kept = position >= listed.dropped_through\n",
        by_test(
            _REPLICA_TESTS,
            "test_a_state_of_a_log_that_was_removed_does_not_go_on_with_the_next_one",
        ),
    ),
    Mutant(
        "a-removal-claims-a-newer-ones-snapshots",
        "a removal that comes back touches nothing of the next log",
        _SNAPSHOTS,
        "                self._check_epoch(current, epoch)\n"
        "            return SnapshotRecord(epoch, token)\n",
        "                epoch_now = max(epoch, current.epoch)\n"
        "                return SnapshotRecord(epoch_now, token)\n"
        "            return SnapshotRecord(epoch, token)\n",
        by_test(
            _REPLICA_TESTS,
            "test_a_snapshot_of_a_log_that_was_removed_is_never_named_nor_used_for_the_next",
        ),
    ),
    Mutant(
        "a-late-snapshot-finds-no-epoch",
        "the snapshots' key keeps the epoch of the removal: no late maker names one",
        _DROPPING,
        "    await Snapshots(client, log).forget(epoch)\n",
        '    await client.store.delete(f"/logs/{log.name}/snapshot")\n',
        by_test(
            "herd/nodes/test_node.py",
            "test_a_dropped_tablespace_leaves_nothing_and_its_name_begins_anew",
        ),
    ),
    Mutant(
        "checkpoints-are-forgotten-by-a-late-removal",
        "the list of checkpoints goes by epochs, in a removal too",
        _CHECKPOINTS,
        "            self._check_epoch(held, epoch)\n            return Checkpoints(epoch=epoch)\n",
        "            return Checkpoints(epoch=epoch)\n",
        by_test(
            "herd/checkpoint/test_record.py",
            "test_a_list_outlives_its_tablespace_and_names_nothing_of_an_older_epoch",
        ),
    ),
    Mutant(
        "a-sweep-goes-by-the-name-alone",
        "a ledger goes only if its own metadata name an older epoch",
        _DROPPING,
        "and marks.owner in owners and marks.epoch < epoch:",
        "and marks.owner in owners:",
        by_test(_AGAIN_TESTS, f"{_SWEEP}[11]"),
    ),
    Mutant(
        "a-maker-does-not-look-whose-log-it-leads",
        "a maker fills a log only if the fact was still its own when it already led",
        _RESTORING,
        "                    if not await _still_ours(directory, name, identity):\n",
        "                    if await _still_ours(directory, name, identity) is None:\n",
        by_test(
            _AGAIN_TESTS, "test_a_maker_that_was_paused_before_it_led_fills_no_other_tablespace"
        ),
    ),
    Mutant(
        "a-maker-keeps-its-name-when-the-store-is-away",
        "a living session does not keep a name that nobody fills",
        _RESTORING,
        "                    await asyncio.sleep(_RETRY_S)\n",
        "                    return\n",
        by_test(
            _AGAIN_TESTS, "test_a_maker_gives_its_name_back_as_soon_as_the_store_answers_again"
        ),
    ),
    Mutant(
        "whatever-comes-back-after-a-removal-was-to-go",
        "ledgers newer than the removal were of a log whose list was lost",
        _LOST,
        "    return bool(current.listed) or epoch <= current.epoch\n",
        "    return bool(current.listed) or current.epoch > 0\n",
        by_test(
            _LOG_TESTS,
            "test_ledgers_that_come_back_were_lost_only_if_they_are_newer_than_the_removal",
        ),
    ),
)
