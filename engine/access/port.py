"""What a door asks about those who come: the port that other ways of knowing people plug into.

Invariants:
- Nobody learns from an answer, nor from its time, whether a name is known.
- An answer may be a few seconds old, never more: what is revoked ends soon.
"""

from typing import TYPE_CHECKING, Protocol

from engine.access.principal import Principal

if TYPE_CHECKING:
    from engine.access.scram import ScramVerifier


class Authenticator(Protocol):
    """Knows users. `None` in its place is a store without any: everybody may do all.

    Every method raises `AccessRefused` for who is not known or does not prove it, and `Unavailable`
    where that cannot be looked up at the moment: not the same thing.
    """

    async def anonymous(self) -> Principal:
        """Who comes without credentials: everybody, while the store has no users."""
        ...

    async def password(self, user: str, password: str) -> Principal:
        """Who shows a password, over a door that nobody listens at."""
        ...

    async def token(self, token: str) -> Principal:
        """Who shows a bearer token."""
        ...

    async def scram(self, user: str) -> "ScramVerifier":
        """What a password is proved against. An unknown name has one, too, that nothing fits."""
        ...

    async def principal(self, user: str, proved: "ScramVerifier | None" = None) -> Principal:
        """What a user who has proved it may do now. For sessions, which ask again and again.

        `proved` is the verifier that the proof was checked against, if the user has just proved the
        password. It must still be the user's verifier: a user who was removed and added again is a
        different user.
        """
        ...

    async def session(
        self, user: str, proved: "ScramVerifier | None" = None, made_ms: int | None = None
    ) -> str:
        """A token of a user who has proved it, good for minutes: for doors that ask at each call.

        `token` accepts it on every node. `proved` is as in `principal`. If `made_ms` is given, it
        must be the user's: a user who was removed and added again has another one.
        """
        ...
