"""Who asks, and what they may.

Without users everybody may do everything; once there is one, everything but `/healthz` needs a
login. An administrator may do all; any other user sees and changes the tasks of the tenant that
has their name.

Invariants:
- A wrong password and a user that there is not take the same time and get the same answer.
- Passwords are kept as digests, and shown nowhere.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from broker.errors import AccessDenied


@dataclass(frozen=True, slots=True)
class User:
    """A user. Who is no administrator has the tenant of that name."""

    name: str
    password: str = field(repr=False)
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks. `tenant`: the only one whose tasks they may see and change; "": all."""

    name: str = ""
    admin: bool = True

    @property
    def tenant(self) -> str:
        """The one tenant that they may act for, "" for administrators."""
        return "" if self.admin else self.name

    def check_admin(self) -> None:
        """Raise `AccessDenied` for who is no administrator."""
        if not self.admin:
            raise AccessDenied(f"user {self.name} is no administrator")

    def check_tenant(self, tenant: str) -> None:
        """Raise `AccessDenied` for who may not act for a tenant."""
        if not self.admin and tenant != self.name:
            raise AccessDenied(f"user {self.name} may only act for the tenant {self.name}")


class Logins:
    """Users with their passwords."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        self._users = {user.name: (_digest(user.password), user.admin) for user in users}

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return not self._users

    def check(self, authorization: str | None) -> Asking | None:
        """Who asks, by the header `Authorization`; None: nobody who is known."""
        if self.open:
            return Asking()
        name, password = _credentials(authorization or "")
        known, admin = self._users.get(name, (_NOBODY, False))
        right = hmac.compare_digest(_digest(password), known)
        return Asking(name, admin) if right and name in self._users else None


_NOBODY: Final = bytes(32)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
