"""The broker over HTTP: the published interface under `/majordodo`, and `/api/v1`."""

from broker.http.app import create_app
from broker.http.bodies import HttpSettings
from broker.http.desk import Desk, desk_elsewhere, desk_for, desk_of
from broker.http.logins import Logins, User
from broker.http.relay import Relay

__all__ = [
    "Desk",
    "HttpSettings",
    "Logins",
    "Relay",
    "User",
    "create_app",
    "desk_elsewhere",
    "desk_for",
    "desk_of",
]
