"""What a writer is asked for, and what it is given.

    bucket            the bucket, which is there
    idempotency_key   a name of this write: a second one of the same name changes nothing

    name string, content binary           an object
    content_type string                   left out, or NULL: none
    metadata map<string, string>          left out, or NULL: none

Invariants:
- An option or a column that means nothing is an error: a misspelt one must not be passed over.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from blobit.errors import SettingsInvalid
from blobit.naming import check_bucket_name

_KNOWN: Final = ("bucket", "idempotency_key", "url")
_SPARKS: Final = ("path", "checkpointlocation")
"""What `save("cows")` says, and what Spark adds for streams."""
COLUMNS: Final = {
    "name": "string",
    "content": "binary",
    "content_type": "string",
    "metadata": "map<string,string>",
}
_NEEDED: Final = ("name", "content")


class WriteWanted(NamedTuple):
    """Where to put objects. `key` is "" where the write has no name of its own."""

    bucket: str
    key: str = ""


def parse_write(options: Mapping[str, str], *, overwrite: bool) -> WriteWanted:
    """What options, named in small letters, ask for. Raises `SettingsInvalid`, `InvalidName`.

    >>> parse_write({"bucket": "cows"}, overwrite=False)
    WriteWanted(bucket='cows', key='')
    """
    for option in options:
        if option not in (*_KNOWN, *_SPARKS):
            raise SettingsInvalid(
                f'format "blobit" has no option {option} for writing: it has {", ".join(_KNOWN)}'
            )
    if overwrite:
        raise SettingsInvalid(
            'a bucket is not overwritten as a whole: say mode("append"), which puts a new object '
            "where a name is taken, or delete what is to go"
        )
    bucket = options.get("bucket") or options.get("path", "").removeprefix("blobit://")
    if not bucket:
        raise SettingsInvalid('no bucket is named: say .option("bucket", "cows")')
    check_bucket_name(bucket)
    return WriteWanted(bucket, options.get("idempotency_key", "").strip())


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise `SettingsInvalid` unless these columns, with their types, are objects."""
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise SettingsInvalid(
            f"an object needs a column {' and a column '.join(missing)}: there are "
            f"{', '.join(columns) or 'none'}"
        )
    for name, kind in columns.items():
        if name not in COLUMNS:
            raise SettingsInvalid(
                f"an object has no {name}: drop the column, it may have {', '.join(COLUMNS)}"
            )
        if kind != COLUMNS[name]:
            raise SettingsInvalid(f"{name} is {COLUMNS[name]}, and is given {kind}: cast it")
