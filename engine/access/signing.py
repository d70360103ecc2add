"""Who signs read tokens: what somebody may read, for a while, in a form that bookies can check.

Invariants:
- A token never says more than the grants of who asks for it, at that moment.
- It lives for days at most: nobody can take it back before.
"""

from typing import Final

from engine.access.principal import ALL, NAMES, Kind, Principal
from engine.access.tokens import READ, TOKEN_CHARACTERS_MAX, Claims, Keys, sign
from engine.errors import InvalidRequest
from engine.ports.clock import Clock

LIFETIME_MS: Final = 12 * 3_600_000
LIFETIME_MS_MAX: Final = 7 * 24 * 3_600_000
_KINDS: Final[tuple[Kind, ...]] = ("tablespace", "bucket")


class ReadSigner:
    """Signs with the key of the cluster's secret, the first one of the accepted keys."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def sign(self, principal: Principal, lifetime_ms: int = 0) -> str:
        """A token for all that somebody may read.

        Raises `InvalidRequest` for a wrong lifetime, and for more grants than a token has room for.
        """
        if not 0 <= lifetime_ms <= LIFETIME_MS_MAX:
            raise InvalidRequest(f"a read token lives for at most {LIFETIME_MS_MAX} ms")
        if principal.admin:
            grants = *((kind, ALL) for kind in _KINDS), (_KINDS[0], NAMES)
        else:
            grants = tuple(
                (kind, name) for kind in _KINDS for name in sorted(principal.named(kind, "read"))
            )
        expires_ms = self._clock.wall_ms() + (lifetime_ms or LIFETIME_MS)
        token = sign(Claims(READ, principal.name, expires_ms, grants), self._keys()[0])
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise InvalidRequest(
                f"{principal.name} has more grants than a token has room for: grant all of a kind"
            )
        return token
