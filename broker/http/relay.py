"""Passing requests on to who leads.

Invariants:
- A request that was passed on is marked, so that no two brokers pass it to and fro.
- It is passed on only where nothing was changed here; it is sent once.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.errors import OutcomeUnknown

FORWARDED: Final = "Herdbook-Forwarded"
_TIMEOUT_S: Final = 70.0
_CONNECT_TIMEOUT_S: Final = 5.0
_PASSED_ON: Final = ("authorization", "content-type", "accept")
_HANDED_BACK: Final = ("content-type", "retry-after", "www-authenticate")


@dataclass(frozen=True, slots=True)
class Passed:
    """A request to pass on."""

    method: str
    target: str
    """Path and query, as they came."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Replied:
    """What the leader said."""

    status: int
    headers: dict[str, str]
    body: bytes


class Relay(Protocol):
    """The way to the leader."""

    async def ask(self, leader: str, request: Passed) -> Replied | None:
        """The leader's reply; None: it was not reached. Raises `OutcomeUnknown`."""
        ...


async def address_url(leader: str) -> str:
    """Where a leader serves HTTP that elects itself by the address of that."""
    return f"http://{leader}"


class HttpRelay:
    """Passes requests on with the `httpx.AsyncClient` of `client`, which its creator closes.

    `url_of` returns where a leader serves HTTP; "" if that is not known.
    """

    def __init__(
        self, client: Callable[[], Any], url_of: Callable[[str], Awaitable[str]] = address_url
    ) -> None:
        self._client = client
        self._url_of = url_of

    async def ask(self, leader: str, request: Passed) -> Replied | None:
        """See `Relay`."""
        import httpx

        url = await self._url_of(leader)
        if not url:
            return None
        headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
        try:
            reply = await self._client().request(
                request.method,
                url + request.target,
                content=request.body,
                headers={**headers, FORWARDED: "1"},
                timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL):
            return None
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"the leader at {leader} did not answer") from error
        handed = {name: reply.headers[name] for name in _HANDED_BACK if name in reply.headers}
        return Replied(reply.status_code, handed, reply.content)
