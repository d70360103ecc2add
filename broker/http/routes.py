"""One operation of `/api/v1`: what it takes, what it gives, and who does it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from broker.access import Asking
from broker.http.desk import Desk
from broker.spec import Id

PathKinds = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request whose parts are all of the kinds that its route wants."""

    path: dict[str, Any]
    query: Any
    body: Any
    who: Asking


@dataclass(frozen=True, slots=True)
class Told:
    """A reply. Bytes go as they are, everything else as JSON."""

    value: Any
    status: int = 200
    media_type: str = "application/json"


Handler = Callable[[Desk, Ask], Awaitable[Told]]


@dataclass(frozen=True, slots=True)
class Route:
    """An operation. `query`, `body` and `reply` are structs, None where there is none."""

    method: str
    path: str
    name: str
    says: str
    handler: Handler
    query: Any = None
    body: Any = None
    body_optional: bool = False
    reply: Any = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    admin: bool = False
    path_kinds: PathKinds = field(default_factory=dict)

    def kind_of(self, parameter: str) -> Any:
        """The kind of a part of the path: an id is a number, all others are names."""
        return self.path_kinds.get(parameter, Id if parameter == "id" else str)
