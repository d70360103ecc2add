"""One operation of the node's HTTP: what it takes and gives, who may ask for it, and who does it.

Invariants:
- Every route says what its caller must be allowed. There is no default: one that does not say
  cannot be made.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from broker.http.routes import PathKinds, Told
from engine.access.principal import Kind, Principal, Right

if TYPE_CHECKING:
    from herdbook.http.house import House


@dataclass(frozen=True, slots=True)
class Judged:
    """The right that a body takes, None: an administrator's; `said` is for the handler."""

    right: Right | None
    said: Any = None


Judge = Callable[["House", Any, Principal], Awaitable[Judged]]


@dataclass(frozen=True, slots=True)
class Need:
    """What a caller must be allowed.

    `kind` and `right` as grants have them; `of` is the part of the path, or the field of the body,
    that names the thing, "" for some thing of that kind, which the handler then looks at. `judge`
    says for a body, and for who sent it, which right it needs beside, where that depends on what is
    asked, and is not asked for who has not even `right`. Without a kind it is for whoever is known,
    and `public` for all who come.
    """

    kind: Kind | None = None
    right: Right = "read"
    of: str = ""
    judge: "Judge | None" = None
    admin: bool = False
    public: bool = False

    @property
    def text(self) -> str:
        """The same for people."""
        if self.public:
            return "nobody need be known"
        if self.admin:
            return "administrators"
        if self.kind is None:
            return "whoever is known"
        more = ", more for what changes something" if self.judge else ""
        return f"{self.right} on {'the' if self.of else 'some'} {self.kind}{more}"


PUBLIC: Final = Need(public=True)
KNOWN: Final = Need()
ADMIN: Final = Need(admin=True)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request whose parts are all of the kinds that its route wants."""

    path: dict[str, Any]
    query: Any
    body: Any
    who: Principal
    request: Request
    said: Any = None
    """What was found out of the body when it was judged."""


Handler = Callable[["House", Ask], Awaitable[Told | Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """An operation. `query`, `body` and `reply` are structs, None where there is none.

    A `body` of bytes is the handler's to read, piece by piece; `reply` bytes is a stream. `headers`
    are those of the request that it heeds.
    """

    method: str
    path: str
    name: str
    says: str
    need: Need
    handler: Handler
    query: Any = None
    body: Any = None
    body_optional: bool = False
    reply: Any = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    path_kinds: PathKinds = field(default_factory=dict)
    headers: tuple[str, ...] = ()

    @property
    def admin(self) -> bool:
        """Whether who is known may be refused."""
        return self.need.admin or self.need.kind is not None

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")

    def kind_of(self, parameter: str) -> Any:
        """The kind of a part of the path: names, unless it is said otherwise."""
        return self.path_kinds.get(parameter, str)
