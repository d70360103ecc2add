"""Functions that workers run, by the type of the task: the decorator `@task`.

    @task(attempts_max=5, time_limit_ms=30_000)
    def resize(path: str, width: int = 640) -> str: ...

The function stays what it was and can be called and tested as before. A worker process imports the
module, and with that knows the type `resize`.

Arguments travel by name, as JSON, and come to the function as its annotations say; a function of
one parameter of type `bytes` gets the payload as it is. A parameter of type `TaskContext` is not
part of the payload: it tells the function which attempt of which task it is.

Invariants:
- A type names one function. The same function may be registered again, as a second import of its
  module does.
- What `encode_arguments` takes, `call` of the same function can decode.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, overload

import msgspec

from broker.connection import Run
from broker.errors import InvalidTask
from broker.task import Backoff

F = TypeVar("F", bound=Callable[..., Any])

_MAIN_MODULES: Final = ("__main__", "__mp_main__")
_LATER_MS_MAX: Final = 100 * 366 * 24 * 3_600_000
_encode: Final = msgspec.json.Encoder().encode


class TaskContext(msgspec.Struct, frozen=True):
    """Which attempt of which task a function runs as."""

    id: int
    attempt: int
    tenant: str
    type: str
    deadline_ms: int = 0
    """A moment of the broker's clock, milliseconds since 1970; 0: none."""

    @property
    def token(self) -> tuple[int, int]:
        """Grows with each attempt: a store that keeps the newest refuses what came late."""
        return self.id, self.attempt


class GiveUp(Exception):
    """Raised by a task's function: it failed, and trying again would not help."""


class TryLater(Exception):
    """Raised by a task's function: it failed, and is not to be tried before `after_ms` passed.

    More than a hundred years are a hundred years.
    """

    def __init__(self, message: str, *, after_ms: int) -> None:
        super().__init__(message)
        self.after_ms = min(max(0, int(after_ms)), _LATER_MS_MAX)


class TaskOptions(msgspec.Struct, frozen=True):
    """What a function says of its tasks; what is None is left to who submits, then to the broker.

    The unit is in the names; `at_most_once`: it is never run a second time, whatever happens.
    """

    attempts_max: int | None = None
    backoff: Backoff | None = None
    time_limit_ms: int | None = None
    at_most_once: bool | None = None
    priority: int | None = None
    retention_ms: int | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    """Exceptions after which another attempt would not help."""


class TaskFunction:
    """A registered function, with what it takes and gives. Made by `@task`."""

    def __init__(self, name: str, function: Callable[..., Any], options: TaskOptions) -> None:
        self.name = name
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        signature = _Signature(name, function)
        self.returns: Final = signature.returns
        self._signature = signature

    @property
    def module(self) -> str:
        """The module that a worker imports to know it."""
        return self.function.__module__

    def encode_arguments(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises `InvalidTask` for arguments that the function refuses."""
        return self._signature.encode(arguments, named)

    def call(self, run: Run) -> Any:
        """Call the function with a task's payload: its result, or for an async one, a coroutine.

        Raises `InvalidTask` for a payload that does not fit, and what the function raises.
        """
        return self._signature.call(self.function, run)

    def decode_result(self, data: bytes) -> Any:
        """A result, as the function's annotation says. Raises `InvalidTask`."""
        return decode_result(data, self.returns)


class _Signature:
    """What a function takes: one payload as it is, or named values as JSON."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        hints = _hints(name, function)
        self.returns: Any = hints.pop("return", Any)
        self._context = ""
        self._positions: list[str] = []
        self._names: list[str] = []
        required: list[tuple[str, Any]] = []
        others: list[tuple[str, Any, Any]] = []
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name, Any)
            if kind is TaskContext:
                self._context = parameter.name
                continue
            _check_kind(name, parameter)
            self._names.append(parameter.name)
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positions.append(parameter.name)
            if parameter.default is parameter.empty:
                required.append((parameter.name, kind))
            else:
                # A default of its own is the function's to fill in: the payload leaves it out.
                others.append((parameter.name, _or_unset(kind), msgspec.UNSET))
        alone = len(self._names) == 1 and required == [(self._names[0], bytes)]
        self._raw = self._names[0] if alone else ""
        self._wholly_required = not others
        made = msgspec.defstruct(
            "Arguments", [*required, *others], kw_only=True, forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(made).decode

    def encode(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        if len(arguments) > len(self._positions):
            raise InvalidTask(f"task {self._name} takes at most {len(self._positions)} arguments")
        given = dict(zip(self._positions, arguments, strict=False))
        for each, value in named.items():
            if each in given:
                raise InvalidTask(f"task {self._name}: {each} is given twice")
            given[each] = value
        if self._raw and isinstance(given.get(self._raw), bytes | bytearray) and len(given) == 1:
            return bytes(given[self._raw])
        try:
            payload = _encode(given)
            if not self._raw:
                self._decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidTask(f"task {self._name}: {error}") from None
        if self._raw:
            raise InvalidTask(f"task {self._name} takes bytes, and nothing else")
        return payload

    def call(self, function: Callable[..., Any], run: Run) -> Any:
        named: dict[str, Any]
        if self._raw:
            named = {self._raw: run.payload}
        elif self._names:
            try:
                values = self._decode(run.payload or b"{}")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidTask(f"task {self._name}: {error}") from None
            named = {name: getattr(values, name) for name in self._names}
            if not self._wholly_required:
                named = {key: value for key, value in named.items() if value is not msgspec.UNSET}
        else:
            named = {}
        if self._context:
            named[self._context] = TaskContext(
                run.id, run.attempt, run.tenant, run.type, run.deadline_ms
            )
        return function(**named)


class Registry:
    """The functions of one program, by type. Most have one: `REGISTRY`."""

    def __init__(self) -> None:
        self._functions: dict[str, TaskFunction] = {}
        self._names: dict[Callable[..., Any], str] = {}

    def add(self, name: str, function: Callable[..., Any], options: TaskOptions) -> TaskFunction:
        """Register a function. Raises `InvalidTask` for a type that another function has."""
        made = TaskFunction(name, function, options)
        before = self._functions.get(name)
        if before is not None and _place(before.function) != _place(function):
            raise InvalidTask(
                f"the type {name} is that of {before.module}.{before.function.__qualname__}: "
                "give one of the two another name"
            )
        self._functions[name] = made
        self._names[function] = name
        return made

    def of(self, what: str | Callable[..., Any]) -> TaskFunction | None:
        """The function of a type, or what `@task` made of a function; None: it knows none."""
        name = what if isinstance(what, str) else self._names.get(what)
        return self._functions.get(name) if name is not None else None

    @property
    def functions(self) -> dict[str, TaskFunction]:
        """All, by type, sorted."""
        return dict(sorted(self._functions.items()))


REGISTRY: Final = Registry()
"""The functions of this process."""


@overload
def task(function: F) -> F:
    """As `@task`."""


@overload
def task(
    *,
    name: str = "",
    attempts_max: int | None = None,
    backoff: Backoff | None = None,
    time_limit_ms: int | None = None,
    at_most_once: bool | None = None,
    priority: int | None = None,
    retention_ms: int | None = None,
    give_up_on: tuple[type[BaseException], ...] = (),
    registry: Registry = REGISTRY,
) -> Callable[[F], F]:
    """As `@task(...)`."""


def task(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    registry: Registry = REGISTRY,
    **options: Any,
) -> Any:
    """Register a function, plain or async, as what runs tasks of a type.

    `name` is the type, by default the function's name. The others are as `TaskOptions` has them:
    a number of attempts, milliseconds. Raises `InvalidTask` for a type that another function has,
    and for parameters that cannot be given by name.
    """

    def register(registered: F) -> F:
        registry.add(name or registered.__name__, registered, TaskOptions(**options))
        return registered

    return register if function is None else register(function)


def encode_result(result: Any) -> bytes:
    """What a function returned, as a task's result. Raises `InvalidTask` for what JSON has not."""
    if result is None:
        return b""
    if isinstance(result, bytes | bytearray):
        return bytes(result)
    try:
        return _encode(result)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(f"the result cannot be stored: {error}") from error


def decode_result(data: bytes, returns: Any = Any) -> Any:
    """A task's result as `returns` says; for `Any`, what JSON says. Raises `InvalidTask`."""
    if returns is bytes:
        return data
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=returns)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidTask(f"the result is not what was expected: {error}") from error


def _check_kind(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise InvalidTask(f"task {name}: *{parameter.name} has no name in a payload")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidTask(f"task {name}: {parameter.name} cannot be given by name")


def _or_unset(kind: Any) -> Any:
    return kind if kind is Any else typing.Union[kind, msgspec.UnsetType]  # noqa: UP007


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InvalidTask(f"task {name}: an annotation cannot be resolved: {error}") from error


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    module = function.__module__
    return ("__main__" if module in _MAIN_MODULES else module), function.__qualname__
