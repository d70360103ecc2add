"""Which functions of the query engine a statement may not call.

Invariants:
- A statement reads rows and computes. Functions that wait, write to a log, show or change the
  process, its settings, its connections or its own catalog, or run another text as SQL, are
  refused.
- Functions in the place of a table are checked elsewhere, by a list of those that are allowed.
"""

from typing import Final

from sqlglot import exp

from herd.errors import NotSupportedError
from herd.sql.parsing import place_of

REFUSED: Final = frozenset(
    {
        # They wait, write to the log, or change what the next query of the connection gets.
        *("sleep_ms", "pg_sleep", "write_log", "setseed"),
        # They show settings, and what the process and its connections do.
        *("current_setting", "getvariable", "get_block_size", "current_query", "current_query_id"),
        *("current_connection_id", "current_transaction_id", "txid_current"),
        # They read the engine's own catalog.
        *("index_key", "pg_get_constraintdef", "pg_get_viewdef"),
        # They plan a text as SQL, or interpret bytes as structures of the engine.
        *("json_serialize_plan", "to_aggregate_state", "variant_bytes_to_variant"),
    }
)
_INTERNAL: Final = "__internal_"
"""The beginning of the names of functions that the engine's optimizer puts into a plan."""
_HINT: Final = "call only functions that compute a value from their arguments"


def is_refused(name: str) -> bool:
    """Whether a function may not be called, by its name in any case."""
    name = name.lower()
    return name in REFUSED or name.startswith(_INTERNAL)


def check_function(node: exp.Func) -> None:
    """Raise `NotSupportedError` for a call of a function that is refused."""
    anonymous = isinstance(node, exp.Anonymous | exp.AnonymousAggFunc)
    name = node.name if anonymous else node.sql_name()
    if is_refused(name):
        raise NotSupportedError(
            f"the function {name.lower()} may not be called", hint=_HINT, place=place_of(node)
        )
