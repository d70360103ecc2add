"""Who asks, and what they may: the same answer at every door.

A grant names a kind of thing, one of that kind or all ("*"), and a right. Rights are a ladder:
who may write may read, who may administer may write.

Invariants:
- What no grant names is refused. An administrator may do all.
- "*" does not reach what is the system's own: users and grants, the names of all buckets, the
  payloads of all tenants' tasks. Administrators have it, and whom a grant gives it by name.
- No grant lets anybody write rows that say what buckets hold: nodes do it for whom a grant of a
  bucket lets.
- A tablespace that many buckets share is read by whom a grant gives `blobs` by name, as the names
  of all buckets are: a grant that names the tablespace itself, or all, does not reach it.
- A principal never changes; whoever keeps one asks from time to time whether it still holds.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from engine.errors import AccessRefused, InvalidRequest

Kind = Literal["tablespace", "bucket", "tenant"]
Right = Literal["read", "write", "admin"]

KINDS: Final[tuple[Kind, ...]] = ("tablespace", "bucket", "tenant")
RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "admin")
ALL: Final = "*"
SYSTEM: Final = "system"
"""The tablespace that holds users, grants and tokens."""
_APART: Final = frozenset(
    {("tablespace", SYSTEM), ("tablespace", "blobs"), ("bucket", "herdbook-tasks")}
)
"""What `ALL` does not reach."""
NAMES: Final = "blobs"
"""The tablespace that holds the names of buckets; those of one bucket begin with it and `_`."""
SHARED_NAMES: Final = "blobs__pool_"
"""How the names of tablespaces begin that many buckets share; no bucket's own begins so."""
_STEPS: Final = {right: step for step, right in enumerate(RIGHTS)}


@dataclass(frozen=True, slots=True)
class Grant:
    """One right to one thing, or to all of a kind. Raises `InvalidRequest` for unknown words.

    >>> Grant("bucket", "letters", "write")
    Grant(kind='bucket', name='letters', right='write')
    """

    kind: Kind
    name: str
    right: Right

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"a grant is for {', '.join(KINDS)}, not for {self.kind!r}")
        if self.right not in RIGHTS:
            raise InvalidRequest(f"a right is {', '.join(RIGHTS)}, not {self.right!r}")
        if not self.name:
            raise InvalidRequest(f"a grant names a {self.kind}, or {ALL} for all")

    def covers(self, kind: Kind, name: str, right: Right) -> bool:
        """Whether this grant is enough."""
        named = self.name == name or (self.name == ALL and (kind, name) not in _APART)
        return self.kind == kind and named and _STEPS[self.right] >= _STEPS[right]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    >>> ann = Principal("ann", grants=(Grant("tablespace", "shop", "write"),))
    >>> ann.allows("tablespace", "shop", "read"), ann.allows("tablespace", "shop", "admin")
    (True, False)
    """

    name: str
    admin: bool = False
    grants: tuple[Grant, ...] = ()
    made_ms: int = field(default=0, compare=False)
    """When the user was added: who is removed and added again is another one."""

    def allows(self, kind: Kind, name: str, right: Right) -> bool:
        """Whether they may do that to the thing of that name."""
        if self.admin:
            return True
        if right != "read" and kind == "tablespace" and _holds_names(name):
            return False
        if kind == "tablespace" and name.lower().startswith(SHARED_NAMES):
            name = NAMES
        return any(grant.covers(kind, name, right) for grant in self.grants)

    def check(self, kind: Kind, name: str, right: Right) -> None:
        """Raise `AccessRefused` where they may not."""
        if not self.allows(kind, name, right):
            raise AccessRefused(f"{self.name} may not {_VERBS[right]} {kind} {name}")

    def check_admin(self) -> None:
        """Raise `AccessRefused` for who is no administrator of the whole store."""
        if not self.admin:
            raise AccessRefused(f"{self.name} is no administrator")

    def named(self, kind: Kind, right: Right) -> frozenset[str]:
        """The things of a kind that grants name with at least that right, `ALL` among them."""
        return frozenset(
            grant.name
            for grant in self.grants
            if grant.kind == kind and _STEPS[grant.right] >= _STEPS[right]
        )


def _holds_names(tablespace: str) -> bool:
    """Whether a tablespace is the names of buckets and objects, and what their ledgers hold."""
    name = tablespace.lower()
    return name == NAMES or name.startswith(NAMES + "_")


_VERBS: Final = {"read": "read", "write": "write to", "admin": "administer"}

EVERYBODY: Final = Principal("everybody", admin=True)
"""Whoever comes to a store without users."""

NODE: Final = Principal("node", admin=True)
"""Who has proved the shared secret, or shown a node's certificate."""
