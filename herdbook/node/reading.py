"""What a node is told by a file, by the environment and by flags: the later over the earlier.

In the environment `HERDBOOK_HERD__LISTEN` is the key `listen` of the table `herd`, `HERDBOOK_DATA`
the key `data`. Lists are written as `one,two` or as JSON, tables as JSON.

Invariants:
- All that is wrong is told at once, each with its key and where it stood.
- A key that nobody knows is an error: a misspelt one must not be passed over. Variables of the
  environment count as keys only with two underscores, or with the name of one: others share the
  prefix.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from herdbook.finding import AuditTable, SecurityTable, ZooKeeperTable, is_cluster
from herdbook.node.settings import FILE, PLACE, NodeSettings

PREFIX: Final = "HERDBOOK_"
_BETWEEN: Final = "__"


class Key(NamedTuple):
    """One thing that may be said: its type, and what kind of path it is, if it is one."""

    name: str
    type: Any
    kind: str


class Said(NamedTuple):
    """A value, where it was said, and the folder in which its paths begin."""

    value: Any
    where: str
    folder: Path
    text: bool
    """Whether it is text that has to be read as what its key wants."""


def _keys() -> dict[str, Key]:
    found = {}
    for field in msgspec.structs.fields(NodeSettings):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for inner in msgspec.structs.fields(field.type):
                name = f"{field.name}.{inner.name}"
                found[name] = Key(name, inner.type, _kind(field.type, inner.name, inner.type))
        else:
            found[field.name] = Key(field.name, field.type, _kind(None, field.name, field.type))
    return found


def _kind(table: type | None, name: str, wanted: Any) -> str:
    if table is SecurityTable or (table is ZooKeeperTable and name != "user"):
        return FILE["kind"]
    if table is AuditTable:
        return PLACE["kind"]
    for part in (wanted, *get_args(wanted)):
        for meta in getattr(part, "__metadata__", ()):
            extra = getattr(meta, "extra", None)
            if extra in (FILE, PLACE):
                return str(extra["kind"])
    return ""


KEYS: Final = _keys()
TABLES: Final = frozenset(name.partition(".")[0] for name in KEYS if "." in name)


def gather(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[NodeSettings, list[str]]:
    """What all three say together, and what of it is wrong in form, which is left out.

    Flags are named as keys, "herd.listen"; a value of theirs that is text is read as the key
    wants it.
    """
    errors: list[str] = []
    said: dict[str, Said] = {}
    if file is not None:
        said |= dict(_of_file(file, errors))
    said |= dict(_of_environment(environment, errors))
    said |= dict(_of_flags(flags, errors))
    values: dict[str, Any] = {}
    for name, one in said.items():
        try:
            value = _converted(KEYS[name], one)
        except msgspec.ValidationError as error:
            errors.append(f"{name}: {_told(error)}, {one.where}")
            continue
        table, _, key = name.rpartition(".")
        if table:
            values.setdefault(table, {})[key] = value
        else:
            values[key] = value
    return msgspec.convert(values, NodeSettings), errors


def _of_file(file: Path, errors: list[str]) -> Iterator[tuple[str, Said]]:
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        errors.append(f"{file} cannot be read: {error.strerror}")
        return
    except ValueError as error:
        errors.append(f"{file} is no TOML: {error}")
        return
    for name, value in _flat(told, errors, file):
        if _known(name, f"in {file}", errors):
            yield name, Said(value, f"in {file}", file.absolute().parent, False)


def _flat(told: dict[str, Any], errors: list[str], file: Path) -> Iterator[tuple[str, Any]]:
    for name, value in told.items():
        if name not in TABLES:
            yield name, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}.{key}", inner
        else:
            errors.append(f"{name} is a table: write [{name}], in {file}")


def _of_environment(
    environment: Mapping[str, str], errors: list[str]
) -> Iterator[tuple[str, Said]]:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower().replace(_BETWEEN, ".", 1)
        if "." not in name and name not in KEYS:
            continue
        if name == "url" and not is_cluster(text):
            # The folder that commands of this shell look into; a node's own is `data`.
            continue
        if _known(name, f"in {variable}", errors):
            yield name, Said(text, f"in {variable}", Path.cwd(), True)


def _of_flags(flags: Mapping[str, Any], errors: list[str]) -> Iterator[tuple[str, Said]]:
    for name, value in flags.items():
        if _known(name, "among the flags", errors):
            text = isinstance(value, str)
            yield name, Said(value, "among the flags", Path.cwd(), text)


def _known(name: str, where: str, errors: list[str]) -> bool:
    if name in KEYS:
        return True
    near = difflib.get_close_matches(name, KEYS, 1, 0.5)
    last = name.rpartition(".")[2]
    near = near or [each for each in KEYS if each.rpartition(".")[2] == last][:1]
    advice = f", perhaps {near[0]} is meant" if near else ""
    errors.append(f"{name}: nobody knows this key{advice}, {where}")
    return False


def _converted(key: Key, said: Said) -> Any:
    value = _parsed(key, said.value) if said.text else said.value
    value = msgspec.convert(value, key.type, strict=not said.text)
    if key.kind and isinstance(value, str):
        return _path(value, said.folder)
    if key.kind:
        return tuple(_path(each, said.folder) for each in value)
    return value


def _path(name: str, folder: Path) -> str:
    if "://" in name:
        # No path: left as it is, so that whoever checks it sees what was said.
        return name
    return str(Path(folder, name).expanduser()) if name else ""


def _parsed(key: Key, text: str) -> Any:
    """Text as what its key wants, where that is a list or a table."""
    origin = get_origin(key.type)
    if origin is None or origin not in (tuple, dict):
        return text
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise msgspec.ValidationError(f"{text!r} is no JSON: {error}") from error
    return [each.strip() for each in text.split(",") if each.strip()]


def _told(error: msgspec.ValidationError) -> str:
    text = str(error).replace("`", "").replace("Expected", "wants").partition(" - at ")[0]
    return text[:1].lower() + text[1:]


def to_toml(settings: NodeSettings) -> str:
    """All of it as a file says it. Secrets are not part of it, only the names of their files."""
    plain = msgspec.to_builtins(settings)
    lines = [f"{name} = {toml_value(plain[name])}" for name in KEYS if "." not in name]
    for table in dict.fromkeys(name.partition(".")[0] for name in KEYS if "." in name):
        told = msgspec.structs.asdict(getattr(settings, table))
        lines += ["", f"[{table}]"]
        lines += [
            f"{key} = {toml_value(msgspec.to_builtins(value))}" for key, value in told.items()
        ]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A plain value as TOML has it."""
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_value(key)} = {toml_value(each)}" for key, each in value.items())
        return "{" + inner + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # JSON has one letter as it is that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
