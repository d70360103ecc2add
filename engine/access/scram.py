"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both sides: pure functions of what was said."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What is kept of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
