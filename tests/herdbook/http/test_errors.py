"""Errors as replies."""

import msgspec

from blobit.errors import AccessDenied
from herdbook.http.errors import reply_of


def test_who_may_not_use_names_is_refused_as_at_every_other_door() -> None:
    reply = reply_of(AccessDenied("bob may not read tablespace blobs"))
    told = msgspec.json.decode(reply.body)["error"]
    assert (reply.status_code, told["code"], told["retryable"]) == (403, "access_denied", False)
