"""A task in a user's words, made what the broker takes.

Invariants:
- What a function's decorator says counts unless the call says something else.
- Nothing is guessed: an argument that does not fit is refused before anything is sent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.commands import Parent, Spec
from broker.errors import InvalidTask
from broker.task import BACKOFF, HOUR_MS, Backoff, Mode, Rule
from broker.worker import Registry

Arguments = Mapping[str, Any] | bytes | None
"""What a task is called with: arguments by name, or bytes as they are."""
What = str | Callable[..., Any]
"""A type, or a function that was registered with `@task`."""
After = int | tuple[int, Rule]
"""A task that must end first; without a rule it must succeed."""

_encode: Final = msgspec.json.Encoder().encode


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said of a task. Times in milliseconds; None: as its function says.

    `delay_ms`: not before so long has passed. `timeout_ms`: it must have ended by then, `deadline`
    of the broker; `time_limit_ms` is for one attempt. Of a `slot` one task at a time has it, of a
    `unique_key` too; the second is refused. `after`: tasks that must end first.
    `attempts_max` 0: without limit.
    """

    tenant: str = "default"
    priority: int | None = None
    delay_ms: int = 0
    timeout_ms: int = 0
    time_limit_ms: int | None = None
    attempts_max: int | None = None
    backoff: Backoff | None = None
    at_most_once: bool | None = None
    slot: str = ""
    unique_key: str = ""
    retention_ms: int | None = None
    after: Sequence[After] = ()
    group: int = 0
    """Over 0: whatever a mapping says, only workers of this group run it."""
    resources: tuple[str, ...] = ()
    """Fixed with `group`: it takes one unit of each."""
    codepool: str = ""
    submitter: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """One task of a batch: what, with which arguments, how."""

    what: Any
    arguments: Any = None
    options: Options = Options()


def describe(registry: Registry, wanted: Wanted, now_ms: int) -> Spec:
    """The broker's form of a task. Raises `InvalidTask`."""
    what, options = wanted.what, wanted.options
    function = registry.of(what)
    if function is None and not isinstance(what, str):
        name = getattr(what, "__qualname__", repr(what))
        raise InvalidTask(f"{name} is no task: decorate it with @task, or name a type")
    said = function.options if function is not None else None
    name = function.name if function is not None else what
    _check_times(name, options)
    at_most_once = _first(options.at_most_once, said and said.at_most_once, False)
    try:
        return Spec(
            name,
            options.tenant,
            _payload(registry, what, wanted.arguments),
            _first(options.priority, said and said.priority, 0),
            now_ms + options.delay_ms if options.delay_ms else 0,
            now_ms + options.timeout_ms if options.timeout_ms else 0,
            _first(options.time_limit_ms, said and said.time_limit_ms, 0),
            _first(options.attempts_max, said and said.attempts_max, 1),
            mode=Mode.AT_MOST_ONCE if at_most_once else Mode.AT_LEAST_ONCE,
            slot=options.slot,
            unique_key=options.unique_key,
            fixed=bool(options.group or options.resources),
            group=options.group or int(bool(options.resources)),
            resources=tuple(options.resources),
            backoff=_first(options.backoff, said and said.backoff, BACKOFF),
            retention_ms=_first(options.retention_ms, said and said.retention_ms, HOUR_MS),
            parents=tuple(map(_parent, options.after)),
            codepool=options.codepool,
            submitter=options.submitter,
        )
    except TypeError as error:
        raise InvalidTask(f"task {name}: {error}") from None


def _check_times(name: str, options: Options) -> None:
    """Raise `InvalidTask` for times before now: added to the clock they would pass for times."""
    for text in ("delay_ms", "timeout_ms"):
        wait_ms = getattr(options, text)
        if not isinstance(wait_ms, int) or wait_ms < 0:
            raise InvalidTask(f"task {name}: {text} is {wait_ms!r}; it is 0 or more milliseconds")


def options_of(options: Mapping[str, Any]) -> Options:
    """Options by name. Raises `InvalidTask` for one that there is not."""
    try:
        return Options(**options)
    except TypeError as error:
        raise InvalidTask(str(error)) from None


def _first(*said: Any) -> Any:
    return next(value for value in said if value is not None)


def _payload(registry: Registry, what: What, arguments: Arguments) -> bytes:
    function = registry.of(what)
    if isinstance(arguments, bytes | bytearray):
        return bytes(arguments)
    given: object = arguments
    if given is not None and not isinstance(given, Mapping):
        name = what if function is None else function.name
        raise InvalidTask(
            f"the arguments of {name} go by name, as {{'name': value}}, or are bytes; "
            f"{type(given).__name__} is neither"
        )
    if function is not None and arguments is not None:
        return function.encode_arguments((), arguments)
    if function is not None:
        return function.encode_arguments((), {})
    if arguments is None:
        return b""
    try:
        return _encode(dict(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(f"the arguments of {what} are no JSON: {error}") from None


def _parent(after: After) -> Parent:
    task_id, rule = after if isinstance(after, tuple) else (after, Rule.ON_SUCCESS)
    return Parent(int(task_id), rule=Rule(rule))
