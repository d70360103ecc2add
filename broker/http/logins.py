"""Who asks, and what they may.

Without users everybody may do everything; once there is one, everything but `/healthz` needs a
login. An administrator may do all; any other user of a file sees and changes the tasks of the
tenant that has their name. What users of a store may, their grants say.

Invariants:
- A wrong password and a user that there is not take the same time and get the same answer.
- Passwords are kept as digests, and shown nowhere.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from broker.access import Asking


@dataclass(frozen=True, slots=True)
class User:
    """A user. Who is no administrator has the tenant of that name."""

    name: str
    password: str = field(repr=False)
    admin: bool = False


Found = Asking | Response | None


class Doorkeeper(Protocol):
    """Knows who asks."""

    def asking(self, request: Request) -> Found | Awaitable[Found]:
        """Who asks, now or soon; None: nobody who is known. A reply: what they are told instead.

        Raises `BrokerUnavailable` where that cannot be looked up at the moment.
        """
        ...


class Logins:
    """Users with their passwords."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        self._users = {user.name: (_digest(user.password), user.admin) for user in users}

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return not self._users

    def asking(self, request: Request) -> Asking | None:
        """See `Doorkeeper`."""
        return self.check(request.headers.get("authorization"))

    def check(self, authorization: str | None) -> Asking | None:
        """Who asks, by the header `Authorization`; None: nobody who is known."""
        if self.open:
            return Asking()
        return self.find(*credentials(authorization or ""))

    def find(self, name: str, password: str) -> Asking | None:
        """The user with that name and password; None if there is none."""
        known, admin = self._users.get(name, (_NOBODY, False))
        right = hmac.compare_digest(_digest(password), known)
        return Asking(name, admin, (name,)) if right and name in self._users else None


_NOBODY: Final = bytes(32)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def credentials(header: str) -> tuple[str, str]:
    """User and password of a header of HTTP Basic; two empty texts for any other."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
