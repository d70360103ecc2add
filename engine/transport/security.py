"""Who may speak on a wire: certificates, and a shared secret that never crosses it.

What a side was given, it asks of the other one: a server with `authorities` wants a client's
certificate, a server with a `secret` wants a proof of it; a client with `authorities` checks the
server's certificate and its name, a client with a `secret` wants the server's proof, too. Both
sides of a cluster are given the same. Who is a user of it, and no part, has no secret but a login:
a password or a token (`engine.access`), which servers with users take in the secret's place.

A proof is HMAC-SHA256 under the secret over who proves, both sides' challenges, and the SHA-256 of
the server's certificate (nothing without TLS):

    "herdbook client" or "herdbook server", zero byte, challenge of the client (32),
    challenge of the server (32), hash of the certificate (0 or 32)

A recorded proof is worth nothing: the next challenge is another one. A proof made for one side is
none for the other, and one made over another certificate is none for this connection: nobody can
stand between and pass proofs on. The client proves first, so that nobody who merely dials a server
learns anything to guess secrets from.

Invariants:
- Proofs are compared in constant time.
- No secret is shown by `repr`.
- Whoever asks for TLS gets TLS 1.2 or later with verification, unless `verify=False` was said.
"""

import hashlib
import hmac
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from engine.access.secret_files import check_closed
from engine.access.shown import ShownToken
from engine.errors import InvalidRequest

CHALLENGE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"
_CLIENT: Final = b"herdbook client\0"
_SERVER: Final = b"herdbook server\0"


@dataclass(frozen=True, slots=True)
class Security:
    """What one side of a wire knows. Nothing at all means: no security.

    `secret` has at least 16 bytes. `certificate` and `private_key` are PEM files of this side;
    `authorities` is a PEM file of those who sign the other side's. `verify=False` encrypts without
    knowing to whom: for trials only. `user` and `password`, or `token`, are a client's login at the
    doors of tablespaces and tasks, where it counts more than the secret; `read_token` is what it
    shows to bookies, and a `ShownToken` where that is renewed. Raises `InvalidRequest` for what
    does not go together.
    """

    secret: bytes = field(default=b"", repr=False)
    certificate: Path | None = None
    private_key: Path | None = None
    authorities: Path | None = None
    verify: bool = True
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    read_token: str | ShownToken = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.secret and len(self.secret) < SECRET_BYTES_MIN:
            raise InvalidRequest(f"a shared secret has at least {SECRET_BYTES_MIN} bytes")
        for name in ("certificate", "private_key", "authorities"):
            told = getattr(self, name)
            # What it says is not repeated: it may be the key itself.
            if isinstance(told, bytes) or "-----BEGIN" in str(told):
                raise InvalidRequest(f"{name} names a PEM file; it is not what stands in the file")
        if self.private_key is not None and self.certificate is None:
            raise InvalidRequest("a private key without its certificate")
        if bool(self.user) != bool(self.password) or (self.user and self.token):
            raise InvalidRequest("a login is a user with a password, or a token")

    @property
    def logs_in(self) -> bool:
        """Whether this client comes as a user rather than as a part of the cluster."""
        return bool(self.user or self.token)

    def as_node(self) -> "Security":
        """The same without a login: a part of the cluster, whoever started it."""
        return replace(self, user="", password="", token="", read_token="")

    def at_bookies(self) -> "Security":
        """What a client shows at a bookie now, where no user logs in."""
        token = "" if self.secret else self.read_token
        if isinstance(token, ShownToken):
            token = token.text
        return replace(self, user="", password="", token=token, read_token="")

    @property
    def on(self) -> bool:
        """Whether the other side has to prove anything before it is served."""
        return bool(self.secret) or self.authorities is not None

    @property
    def encrypts(self) -> bool:
        """Whether this side speaks TLS."""
        return self.certificate is not None or self.authorities is not None or not self.verify

    def server_context(self, strangers: bool = False) -> ssl.SSLContext | None:
        """TLS for a listener, None without a certificate.

        With `strangers` a client may come without a certificate: who takes it in has to ask for
        another proof. Raises `InvalidRequest` for files that cannot be used, or for authorities
        without a certificate.
        """
        if self.certificate is None:
            if self.encrypts:
                raise InvalidRequest("a server that speaks TLS needs a certificate and its key")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        if self.authorities is not None:
            context.verify_mode = ssl.CERT_OPTIONAL if strangers else ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """TLS for a dialling client, None where there is to be none.

        Without `authorities` the system's are trusted. Raises `InvalidRequest` for files that
        cannot be used.
        """
        if not self.encrypts:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.authorities is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        self._load(context)
        return context

    def binding(self) -> bytes:
        """The hash of this server's own certificate, as its clients see it; empty without TLS.

        Raises `InvalidRequest` for a file that cannot be used.
        """
        if self.certificate is None:
            return b""
        try:
            text = self.certificate.read_text()
            start = text.index(_PEM_BEGIN)
            end = text.index(_PEM_END, start) + len(_PEM_END)
            return binding_of(ssl.PEM_cert_to_DER_cert(text[start:end]))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{self.certificate} is no certificate: {error}") from error

    def client_proof(self, client: bytes, server: bytes, binding: bytes) -> bytes:
        """What a client shows that knows the secret, for these challenges and this certificate."""
        return self._proof(_CLIENT, client, server, binding)

    def server_proof(self, client: bytes, server: bytes, binding: bytes) -> bytes:
        """What a server shows that knows the secret."""
        return self._proof(_SERVER, client, server, binding)

    def _proof(self, role: bytes, client: bytes, server: bytes, binding: bytes) -> bytes:
        assert self.secret
        assert len(client) == len(server) == CHALLENGE_BYTES and len(binding) in (0, 32)
        return hmac.digest(self.secret, role + client + server + binding, "sha256")

    def _load(self, context: ssl.SSLContext) -> None:
        key = self.private_key or self.certificate
        if key is not None:
            check_closed(key)
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.private_key)
            if self.authorities is not None:
                context.load_verify_locations(self.authorities)
        except OSError as error:
            # An SSLError is one, too, and names no file.
            files = (self.certificate, self.private_key, self.authorities)
            names = ", ".join(str(file) for file in files if file is not None)
            raise InvalidRequest(f"cannot use {names} for TLS: {error}") from error


NO_SECURITY: Final = Security()


def new_challenge() -> bytes:
    """Bytes that nobody can foresee; nothing but a proof ever depends on them."""
    return ssl.RAND_bytes(CHALLENGE_BYTES)


def binding_of(certificate: bytes | None) -> bytes:
    """The hash of a server's certificate (DER) as it came off the wire, empty without one."""
    return hashlib.sha256(certificate).digest() if certificate else b""


def proofs_match(shown: object, expected: bytes) -> bool:
    """Whether a proof is right, in constant time, whatever was shown."""
    return isinstance(shown, bytes) and hmac.compare_digest(shown, expected)
