"""The page of all paths under `/api/v1`, made of the OpenAPI document that a node serves."""

from collections.abc import Iterator
from typing import Any, Final

from herdbook.http.openapi import merged

_HEAD: Final = """# HTTP API

Every path of `/api/v1`. This page is made by `make docs` of the document that a node serves at
`/api/v1/openapi.json`; [HTTP](../http.md) tells how to log in, and has examples.

What is refused is `{"error": {"code", "message", "retryable", "remedy"}}`, and nothing was changed,
except with 504: then it is not known. *Needs* is the right of who asks.
"""


def page() -> str:
    """The whole page."""
    told = merged()
    parts = [_HEAD]
    for section, operations in _sections(told).items():
        parts.append(f"\n## {section}\n")
        parts += [_operation(*each) for each in operations]
    parts.append("\n## Shapes\n")
    parts += [_shape(*each) for each in sorted(told["components"]["schemas"].items())]
    return "\n".join(parts)


def _sections(told: dict[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    """The operations by the first word of their paths."""
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for path, by_method in told["paths"].items():
        word = path.removeprefix("/api/v1/").partition("/")[0] or "/"
        for method, operation in by_method.items():
            found.setdefault(word, []).append((method.upper(), path, operation))
    return found


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"### {method} {path}\n", operation.get("summary", "")]
    parts[-1] += f" Needs: {operation['x-herdbook-need']}.\n"
    rows = list(_parameters(operation))
    if rows:
        parts.append("| parameter | in | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    body = operation.get("requestBody")
    if body is not None:
        parts.append(f"Body: {_content(body)}\n")
    statuses = sorted(operation["responses"].items())
    good = [f"{status}: {_reply(reply)}" for status, reply in statuses if status < "400"]
    bad = [status for status, _ in statuses if status >= "400"]
    parts.append("  \n".join([*good, f"Refused: {', '.join(bad)}"]) + "\n")
    return "\n".join(parts)


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    for each in operation.get("parameters", ()):
        needed = ", has to be there" if each.get("required") and each["in"] != "path" else ""
        words = f"{_type(each['schema'])} {each.get('description', '')}".strip()
        yield f"| `{each['name']}` | {each['in']}{needed} | {words} |"


def _reply(reply: dict[str, Any]) -> str:
    content = _content(reply)
    words = str(reply["description"]).rstrip(".")
    return f"{words}: {content}" if content else words


def _content(holder: dict[str, Any]) -> str:
    return ", ".join(
        _type(each["schema"]) if kind == "application/json" else f"`{kind}`"
        for kind, each in holder.get("content", {}).items()
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    words = schema.get("description", "")
    needed = schema.get("required", ())
    rows = [
        f"| `{field}` | {_type(each)} | {_default(each, field in needed)} |"
        for field, each in schema.get("properties", {}).items()
    ]
    table = "| field | type | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n" if rows else ""
    kind = "" if rows else f"{_type(schema)}\n"
    return f"### {name}\n\n{' '.join(words.split())}\n\n{table}{kind}"


def _default(schema: dict[str, Any], needed: bool) -> str:
    if needed:
        return "has to be there"
    value = schema.get("default")
    return f"unless said: `{value}`" if value not in (None, "", [], {}) else ""


def _type(schema: dict[str, Any]) -> str:
    """A schema in few words, with links to the shapes that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower().replace('.', '')})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(kind) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None and most < 1 << 31:
        return f", {least} to {most:,}"
    longest = schema.get("maxLength")
    return f", up to {longest:,} characters" if longest else ""
