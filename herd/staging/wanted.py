"""What a writer is asked for, in the words of its options.

    table               the table, which is there
    tablespace          its tablespace; "default"
    upsert              "true": rows whose keys are there already are replaced; "false"
    idempotency_key     a name of this write: a second one of the same name changes nothing

Invariants:
- An option that means nothing is an error: a misspelt one must not write something else.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from herd.errors import ProgrammingError
from herd.staging.layout import Mode

_KNOWN: Final = ("table", "tablespace", "upsert", "idempotency_key", "url")
_SPARKS: Final = ("path", "checkpointlocation")
"""What `save("cows")` says, and what Spark adds for streams."""
_TRUTHS: Final = {"true": True, "false": False}


class WriteWanted(NamedTuple):
    """What to write where. `key` is "" where the write has no name of its own."""

    tablespace: str
    table: str
    mode: Mode
    key: str


def parse_write(options: Mapping[str, str], *, overwrite: bool) -> WriteWanted:
    """What options, named in small letters, ask for. Raises `ProgrammingError`.

    >>> parse_write({"table": "cow", "upsert": "true"}, overwrite=False).mode
    <Mode.UPSERT: 'upsert'>
    """
    for option in options:
        if option not in (*_KNOWN, *_SPARKS):
            raise ProgrammingError(
                f'format "herd" has no option {option} for writing',
                hint=f"it has {', '.join(_KNOWN)}",
            )
    table = options.get("table") or options.get("path")
    if not table:
        raise ProgrammingError("no table is named", hint='say .option("table", "cows")')
    upsert = _TRUTHS.get(options.get("upsert", "false").strip().lower())
    if upsert is None:
        raise ProgrammingError(
            f"upsert is true or false, not {options['upsert']!r}", hint='option("upsert", "true")'
        )
    if upsert and overwrite:
        raise ProgrammingError(
            "a table is overwritten or upserted into, not both", hint='mode("append") with upsert'
        )
    mode = Mode.UPSERT if upsert else Mode.OVERWRITE if overwrite else Mode.APPEND
    tablespace = options.get("tablespace", "default").lower()
    return WriteWanted(tablespace, table, mode, options.get("idempotency_key", "").strip())
