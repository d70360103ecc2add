"""Mutants of SQL: definitions, conflicts, what is answered of changed rows."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_SMALL: Final = "herd/sql/test_small_queries.py"
_POOL: Final = "herd/sql/test_query_pool.py"
_RUNNERS: Final = "herd/sql/test_query_runners.py"
_ATTACKS: Final = "herd/sql/test_attacks.py"

HERD_SQL_MUTANTS: Final = (
    Mutant(
        "a-limit-in-per-cent-counts-rows",
        "a LIMIT that is more than a number is left to the query engine",
        "herd/sql/fast.py",
        'if any(value for part, value in limit.args.items() if part != "expression"):',
        "if False:",
        by_test(
            "herd/sql/test_plans.py",
            "test_a_limit_counts_whichever_way_the_rows_are_found",
        ),
    ),
    Mutant(
        "a-query-by-an-index-has-no-limit",
        "a query by an index answers as many rows as its LIMIT says",
        "herd/sql/finding.py",
        "for one in found[: self.limit]]",
        "for one in found]",
        by_test(
            "herd/sql/test_plans.py",
            "test_a_limit_counts_whichever_way_the_rows_are_found",
        ),
    ),
    Mutant(
        "any-length-of-a-statement-is-plain",
        "a small query has a short statement",
        "herd/sql/small_queries.py",
        "if count >= _NODES_MAX or type(node) not in _PLAIN:",
        "if type(node) not in _PLAIN:",
        by_test(_SMALL, "test_statements_that_may_make_more_of_their_rows_are_not_plain"),
    ),
    Mutant(
        "rows-of-joined-tables-are-added",
        "rows count as if each were joined with each",
        "herd/sql/small_queries.py",
        "        rows *= max(1, size.rows)",
        "        rows += size.rows",
        by_test(_SMALL, "test_rows_count_as_if_each_were_joined_with_each"),
    ),
    Mutant(
        "a-view-is-plain-whatever-its-query-is",
        "what is plain is asked of the statement with its views' queries in it",
        "herd/sql/prepared.py",
        "    tree = tree.copy()\n    named_outputs(tree)",
        "    is_plain = lambda _, columns, plain=is_plain(tree): plain\n"
        "    tree = tree.copy()\n    named_outputs(tree)",
        by_test(_SMALL, "test_a_view_costs_what_its_query_costs"),
    ),
    Mutant(
        "rows-are-not-measured-when-they-are-read",
        "the rows that an index names are measured before the query runs in the node",
        "herd/sql/small_queries.py",
        "if not isinstance(rows, pa.Table) or not is_still_small(sizes):",
        "if not isinstance(rows, pa.Table):",
        by_test(_SMALL, "test_long_rows_that_an_index_names_are_not_few"),
    ),
    Mutant(
        "an-output-may-use-an-output-in-the-node",
        "no expression of a plain query contains outputs, which would multiply it",
        "herd/sql/small_queries.py",
        "return stars * columns <= _COLUMNS_MAX and not _uses_outputs(tree)",
        "return stars * columns <= _COLUMNS_MAX",
        by_test(_SMALL, "test_statements_that_may_make_more_of_their_rows_are_not_plain"),
    ),
    Mutant(
        "a-query-of-many-rows-stays-in-the-node",
        "only a query of few rows runs in the node",
        "herd/sql/query.py",
        "work.small = small if small is not None and small(self._sizes) else None",
        "work.small = (lambda sizes: True) if small is not None else None",
        by_test(_SMALL, "test_a_query_of_few_rows_runs_in_the_node_and_one_of_many_does_not"),
    ),
    Mutant(
        "entries-stay-as-they-were-when-null-comes",
        "keys of a column that may be NULL say whether it is: its indexes are made anew",
        "herd/sql/altering.py",
        "        self.table = await make_indexes_anew(self.transaction, self.table, column)",
        "        self.table = self.transaction.catalog.table(self.table.name)",
        by_test(
            "herd/sql/test_altering.py",
            "test_not_null_is_checked_and_makes_the_entries_of_indexes_anew",
        ),
    ),
    Mutant(
        "a-narrower-type-asks-no-row",
        "a column changes its type only where every value stays as it is",
        "herd/sql/altering.py",
        '        if said == "some":',
        '        if said == "none":',
        by_test(
            "herd/sql/test_altering.py",
            "test_a_type_that_would_change_a_value_is_refused",
        ),
    ),
    Mutant(
        "a-check-is-added-unasked",
        "a constraint that is added holds for every row that is there",
        "herd/sql/altering.py",
        "                await check_condition(transaction, after, check)",
        "                del check",
        by_test(
            "herd/sql/test_altering.py",
            "test_a_check_is_added_if_all_rows_keep_it",
        ),
    ),
    Mutant(
        "rows-before-a-column-forget-its-default",
        "a row older than a column has its default of that time",
        "herd/sql/altering.py",
        "            column = msgspec.structs.replace(column, fill=store([], self.given))",
        "            store([], self.given)",
        by_test(
            "herd/sql/test_altering.py",
            "test_rows_from_before_a_column_have_its_default",
        ),
    ),
    Mutant(
        "a-conflict-asks-any-index",
        "a conflict is one of a unique index, also where another one is over the same columns",
        "herd/sql/conflicts.py",
        "                    if index.definition.unique and index.definition.columns == columns",
        "                    if index.definition.columns == columns",
        by_test(
            "herd/sql/test_inserting.py",
            "test_a_conflict_is_one_of_the_unique_index_among_several",
        ),
    ),
    Mutant(
        "a-row-for-update-is-shown-as-it-was-found",
        "rows of FOR UPDATE are read again under their locks",
        "herd/sql/targets.py",
        "            if value[:POSITION_BYTES] != position:",
        "            if not position:",
        by_test(
            "herd/sql/test_for_update.py",
            "test_a_row_that_is_gone_or_fits_no_more_is_left_out",
        ),
    ),
    Mutant(
        "a-key-may-be-a-column",
        "the quick way is for keys that are constants",
        "herd/sql/fast.py",
        "        if isinstance(column, exp.Column) and given and constant(value):",
        "        if isinstance(column, exp.Column) and given:",
        by_test(
            "herd/sql/test_writing.py",
            "test_parameters_stand_everywhere",
        ),
    ),
    Mutant(
        "a-query-that-closing-ended-was-cancelled",
        "who is ended by closing is told so, and not to try again",
        "herd/sql/query_pool.py",
        "            if asking is not None and asking.cancelling():\n",
        "            if True:\n",
        by_test(
            "herd/sql/test_query.py",
            "test_closing_ends_a_query_that_runs_and_one_that_waits_for_its_turn",
        ),
    ),
    Mutant(
        "an-error-holds-the-answer-of-its-query",
        "an error does not keep the result and its batches alive",
        "herd/sql/session.py",
        """lambda one, work: _run(one, work, parameters))
        except Exception as error:
            failure = self._failure(error)
        finally:
            self._ran(running)
        try:
            # Its frames would keep what the query has read until a full collection.
            raise failure.with_traceback(None)
""",
        """lambda one, work: _run(one, work, parameters))
        except Exception as error:
            failure = self._failure(error)
        finally:
            self._ran(running)
        try:
            raise failure
""",
        by_test(_ATTACKS, "test_an_error_keeps_no_part_of_its_query_alive"),
    ),
    Mutant(
        "what-duckdb-says-late-is-an-error-of-the-disk",
        "what DuckDB says in the middle of a result means what it says at the beginning",
        "herd/translating.py",
        "or (isinstance(error, OSError) and _TITLE.match(str(error))):",
        "or False:",
        by_test(_ATTACKS, "test_a_column_of_texts_past_two_gibibytes_is_too_large"),
    ),
    Mutant(
        "libraries-errors-come-out-of-statements",
        "every exception of a statement is one of the database's errors",
        "herd/sql/session.py",
        "        return database_error(error)\n",
        "        return error\n",
        by_test(_ATTACKS, "test_every_statement_ends_and_the_next_of_anybody_works"),
    ),
    Mutant(
        "values-that-python-has-not-raise-its-own-errors",
        "a value that Python cannot represent is out of range",
        "herd/arrow.py",
        "    except (ValueError, ArithmeticError, pa.ArrowException) as error:",
        "    except KeyError as error:",
        by_test(_ATTACKS, "test_every_statement_ends_and_the_next_of_anybody_works"),
    ),
    Mutant(
        "the-upper-half-of-a-type-is-negative",
        "a result has the values of the query",
        "herd/arrow.py",
        "        return (lambda value: int(value) % 2**128) if UNSIGNED in facts else int\n",
        "        return int\n",
        by_test(_ATTACKS, "test_every_statement_ends_and_the_next_of_anybody_works"),
    ),
    Mutant(
        "sessions-of-a-dropped-tablespace-try-for-ever",
        "a session of a dropped tablespace fails with an error that says so",
        "herd/store.py",
        "            space.dropped = dropped\n",
        "            space.dropped = False\n",
        by_test(
            "herd/nodes/test_folder_spaces.py",
            "test_sessions_of_a_dropped_tablespace_never_write_into_its_successor",
        ),
    ),
    Mutant(
        "a-user-has-all-places",
        "a user has a share of the queries that run",
        "herd/sql/query_pool.py",
        "        self._share = share or count\n",
        "        self._share = count\n",
        by_test(_POOL, "test_a_user_has_a_share_and_others_get_in_beside_it"),
    ),
    Mutant(
        "who-holds-locks-waits-like-all-others",
        "queries of transactions that hold locks have places of their own",
        "herd/sql/query_pool.py",
        "        places = self._holding if holding and self._places.full(user) else self._places\n",
        "        places = self._places\n",
        by_test(_POOL, "test_a_query_that_holds_locks_gets_a_place_although_all_are_taken"),
    ),
    Mutant(
        "nobody-watches-the-memory-of-queries",
        "a query process never holds more than a query may",
        "herd/sql/query_supervisor.py",
        "                if private_bytes(str(pid)) - process.first_bytes > limit:\n",
        "                if False:\n",
        by_test(_RUNNERS, "test_a_process_that_grows_beside_duckdbs_own_limit_is_killed"),
    ),
    Mutant(
        "queries-fill-their-disk",
        "the files of all queries together leave free what is kept of their disk",
        "herd/sql/query_supervisor.py",
        "            if shutil.disk_usage(folder).free >= kept_bytes:\n",
        "            if True:\n",
        by_test(_RUNNERS, "test_queries_of_a_server_leave_free_what_is_kept_of_their_disk"),
    ),
    Mutant(
        "long-queries-keep-their-priority",
        "a query that runs for long lets others go first",
        "herd/sql/query_supervisor.py",
        "_SLOW_NICE: Final = 10\n",
        "_SLOW_NICE: Final = 0\n",
        by_test(_RUNNERS, "test_a_query_that_runs_for_long_lets_others_go_first"),
    ),
    Mutant(
        "changed-rows-are-read-twice",
        "a page is read without the rows that were changed since",
        "herd/sql/query_child.py",
        "            without_places(self._pages[number].select(names), places)\n",
        "            self._pages[number].select(names)\n",
        by_test(_RUNNERS, "test_pages_are_read_without_changed_rows_and_with_those_beside_them"),
    ),
    Mutant(
        "a-large-answer-loses-rows",
        "a large answer arrives whole",
        "herd/sql/query_child.py",
        "                writer.write_batch(first)\n",
        "",
        by_test(_RUNNERS, "test_a_large_answer_arrives_whole"),
    ),
    Mutant(
        "a-query-process-is-asked-to-end",
        "a query process is killed: nothing that it does may keep it",
        "herd/sql/query_supervisor.py",
        "if kind == frames.KILL:\n                    os.kill(pid, signal.SIGKILL)\n",
        "if kind == frames.KILL:\n                    os.kill(pid, signal.SIGINT)\n",
        by_test(_RUNNERS, "test_a_process_that_looks_for_no_interrupt_is_ended"),
    ),
)
