"""Mutants of the metadata store that bookies' servers pass on, and of tasks that ask there."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_PASSED_ON: Final = "engine/metadata/passed_on.py"
_PASSED_ON_TESTS: Final = "engine/test_passed_on.py"
_THROUGH_TESTS: Final = "engine/test_through.py"
_CONNECTIONS: Final = "spark/test_connections.py"

PASSING_ON_MUTANTS: Final = (
    Mutant(
        "each-task-has-a-session",
        "tasks have no session of ZooKeeper",
        "engine/place.py",
        'if not place.is_cluster or place.wire != "framed":',
        "if True:",
        by_test(_THROUGH_TESTS, "test_tasks_are_told_where_bookies_are_but_not_of_those_over_grpc"),
    ),
    Mutant(
        "another-clusters-store-is-asked",
        "a server of another cluster is not asked",
        "engine/connecting.py",
        "                    cluster_id=through.cluster_id,\n",
        "",
        by_test(_THROUGH_TESTS, "test_where_no_server_passes_the_store_on_zookeeper_is_reached"),
    ),
    Mutant(
        "an-ephemeral-key-is-passed-on",
        "nothing rests on a session that is passed on",
        _PASSED_ON,
        "        if ephemeral:\n            raise InvalidRequest(_EPHEMERAL)\n",
        "",
        by_test(_PASSED_ON_TESTS, "test_nothing_that_rests_on_a_session_is_made_through_a_server"),
    ),
    Mutant(
        "a-clients-end-ends-the-servers-session",
        "the store goes on when a client's session ends",
        _PASSED_ON,
        "        for end in ends:\n",
        "        await self._store.close()\n        for end in ends:\n",
        by_test(
            _PASSED_ON_TESTS, "test_the_end_of_one_client_is_none_of_the_server_and_of_no_other"
        ),
    ),
    Mutant(
        "each-pin-asks-a-store-that-is-away",
        "a store that is away is asked once when an application ends",
        "herdbook/spark.py",
        "                silent.add(pin.place)\n",
        "                pass\n",
        by_test(
            _CONNECTIONS,
            "test_a_store_that_is_away_is_not_asked_for_each_pin_of_an_application",
        ),
    ),
    Mutant(
        "a-cause-loses-its-hint",
        "the store's error in one of Spark's says the same",
        "herdbook/causes.py",
        "        return kind(message, hint=hint)\n",
        "        return kind(message)\n",
        by_test("herdbook/test_causes.py", "test_an_error_of_tables_is_found_as_it_was"),
    ),
)
