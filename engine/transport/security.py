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

While a secret is replaced there are two: the first is proved, either is accepted. A server answers
with the one that its client has proved. The process can read its files again
(`engine.ports.renewing`): `Security.now` applies to the next connection. Existing connections keep
the values that they began with.

Invariants:
- Proofs are compared in constant time.
- No secret is shown by `repr`.
- Whoever asks for TLS gets TLS 1.2 or later with verification, unless `verify=False` was said.
"""

import hashlib
import hmac
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from engine.access.secret_files import check_private
from engine.access.shown import ShownToken
from engine.access.tokens import key_of
from engine.errors import InvalidRequest
from engine.ports.renewing import Renewed

CHALLENGE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"
_CLIENT: Final = b"herdbook client\0"
_SERVER: Final = b"herdbook server\0"


class Pem(NamedTuple):
    """The contents of one side's files, for libraries that take contents instead of names."""

    private_key: bytes
    certificate: bytes
    authorities: bytes | None


class TlsFiles:
    """Certificate, key and authorities. They are read once for each use, when it is needed.

    Returned values never change: to use newer contents of the files, make another object.
    """

    def __init__(
        self,
        certificate: Path | None,
        private_key: Path | None,
        authorities: Path | None,
        verify: bool,
    ) -> None:
        self.files = (certificate, private_key, authorities, verify)
        self._certificate = certificate
        self._private_key = private_key
        self._authorities = authorities
        self._verify = verify
        self._servers: dict[bool, ssl.SSLContext] = {}
        self._client: ssl.SSLContext | None = None
        self._binding: bytes | None = None
        self._pem: Pem | None = None

    def read_as(self, other: "TlsFiles") -> None:
        """Read the files for every use that `other` had. Raises `InvalidRequest`."""
        for file in filter(None, (self._certificate, self._private_key, self._authorities)):
            if file.exists() and not file.is_file():
                raise InvalidRequest(f"{file} is a pipe, which can be read only once: use a file")
        for strangers in other._servers:
            self.server(strangers)
        if other._client is not None or not other._servers:
            self.client()
        if other._pem is not None:
            _ = self.pem
        if self._certificate is not None:
            _ = self.binding

    def server(self, strangers: bool) -> ssl.SSLContext:
        """TLS for a listener. Raises `InvalidRequest`."""
        context = self._servers.get(strangers)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load(context)
            if self._authorities is not None:
                context.verify_mode = ssl.CERT_OPTIONAL if strangers else ssl.CERT_REQUIRED
            self._servers[strangers] = context
        return context

    def client(self) -> ssl.SSLContext:
        """TLS for a dialling client. Raises `InvalidRequest`."""
        if self._client is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if not self._verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif self._authorities is None:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            self._load(context)
            self._client = context
        return self._client

    @property
    def binding(self) -> bytes:
        """The hash of the certificate, as clients see it. Raises `InvalidRequest`."""
        if self._binding is None:
            assert self._certificate is not None
            try:
                text = self._certificate.read_text()
                start = text.index(_PEM_BEGIN)
                end = text.index(_PEM_END, start) + len(_PEM_END)
                self._binding = binding_of(ssl.PEM_cert_to_DER_cert(text[start:end]))
            except (OSError, ValueError) as error:
                raise InvalidRequest(f"{self._certificate}: not a certificate: {error}") from error
        return self._binding

    @property
    def pem(self) -> Pem:
        """The contents of the files. Raises `InvalidRequest`."""
        if self._pem is None:
            authorities = self._authorities
            try:
                self._pem = Pem(
                    _content(self._private_key or self._certificate),
                    _content(self._certificate),
                    None if authorities is None else authorities.read_bytes(),
                )
            except OSError as error:
                why = f"{error.filename} cannot be read: {error.strerror}"
                raise InvalidRequest(why) from error
        return self._pem

    def _load(self, context: ssl.SSLContext) -> None:
        key = self._private_key or self._certificate
        if key is not None:
            check_private(key)
        try:
            if self._certificate is not None:
                context.load_cert_chain(self._certificate, self._private_key)
            if self._authorities is not None:
                context.load_verify_locations(self._authorities)
        except OSError as error:
            # An SSLError is also an OSError, but names no file.
            files = (self._certificate, self._private_key, self._authorities)
            names = ", ".join(str(file) for file in files if file is not None)
            raise InvalidRequest(f"cannot use {names} for TLS: {error}") from error


def _content(file: Path | None) -> bytes:
    return b"" if file is None else file.read_bytes()


@dataclass(frozen=True, slots=True)
class Security:
    """The credentials of one side of a connection. Without any, there is no security.

    `secret` has at least 16 bytes, and so has `other_secret`, the previous or next secret, which is
    accepted but never used for a proof. `certificate` and `private_key` are PEM files of this side;
    `authorities` is a PEM file of one or more of those who sign the other side's. `verify=False`
    encrypts without knowing to whom: for trials only. `user` and `password`, or `token`, are a
    client's login for tablespaces and tasks, where it is used instead of the secret; `read_token`
    is what it presents to bookies, a `ShownToken` if it is renewed. Raises `InvalidRequest` for
    values that contradict each other.
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
    other_secret: bytes = field(default=b"", repr=False)
    source: "Renewed[Security] | None" = field(default=None, repr=False, compare=False)
    """The source that can be read again; None: the values are fixed."""
    tls: TlsFiles | None = field(default=None, repr=False, compare=False)
    """The contents of the TLS files; None: the named files are read when they are needed."""

    def __post_init__(self) -> None:
        if any(len(each) < SECRET_BYTES_MIN for each in self.secrets):
            raise InvalidRequest(f"a shared secret has at least {SECRET_BYTES_MIN} bytes")
        if self.other_secret and not self.secret:
            raise InvalidRequest("a second secret is accepted only together with a first one")
        for name in ("certificate", "private_key", "authorities"):
            told = getattr(self, name)
            # What it says is not repeated: it may be the key itself.
            if isinstance(told, bytes) or "-----BEGIN" in str(told):
                raise InvalidRequest(f"{name} names a PEM file; it is not what stands in the file")
        if self.private_key is not None and self.certificate is None:
            raise InvalidRequest("a private key without its certificate")
        if bool(self.user) != bool(self.password) or (self.user and self.token):
            raise InvalidRequest("a login is a user with a password, or a token")
        files = (self.certificate, self.private_key, self.authorities, self.verify)
        if self.tls is None or self.tls.files != files:
            object.__setattr__(self, "tls", TlsFiles(*files))

    @staticmethod
    def renewed(read: Callable[[], "Security"]) -> "Security":
        """What `read` returns; it is called again when the process reads its files again.

        `now` of every object derived from it changes, too. If any part does not match the others,
        nothing changes.
        Raises what `read` raises.
        """
        source = Renewed(read, _check_renewed)
        return replace(source.value, source=source)

    @property
    def now(self) -> "Security":
        """The same side with the newest contents of its files, for one connection or one call."""
        newest = self if self.source is None else self.source.value
        if newest.tls is self.tls:
            return self
        who = newest if self.logs_in else NO_SECURITY
        return replace(
            newest,
            user=who.user,
            password=who.password,
            token=who.token,
            read_token=self.read_token,
            source=self.source,
        )

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The accepted shared secrets; the first is the one that this side proves."""
        return tuple(filter(None, (self.secret, self.other_secret)))

    def token_keys(self) -> tuple[bytes, ...]:
        """The keys for tokens that are accepted now; the first one signs."""
        return tuple(map(key_of, self.now.secrets))

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
        return replace(self.now, user="", password="", token=token, read_token="", source=None)

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
        assert self.tls is not None
        if self.certificate is not None:
            return self.tls.server(strangers)
        if self.encrypts:
            raise InvalidRequest("a server that speaks TLS needs a certificate and its key")
        return None

    def client_context(self) -> ssl.SSLContext | None:
        """TLS for a dialling client, None where there is to be none.

        Without `authorities` the system's are trusted. Raises `InvalidRequest` for files that
        cannot be used.
        """
        assert self.tls is not None
        return self.tls.client() if self.encrypts else None

    def binding(self) -> bytes:
        """The hash of this server's own certificate, as its clients see it; empty without TLS.

        Raises `InvalidRequest` for a file that cannot be used.
        """
        assert self.tls is not None
        return b"" if self.certificate is None else self.tls.binding

    def client_proof(self, client: bytes, server: bytes, binding: bytes) -> bytes:
        """What a client shows that knows the secret, for these challenges and this certificate."""
        return _proof(self.secret, _CLIENT, client, server, binding)

    def server_proof(self, client: bytes, server: bytes, binding: bytes) -> bytes:
        """What a server shows that knows the secret."""
        return _proof(self.secret, _SERVER, client, server, binding)

    def answer(self, shown: object, client: bytes, server: bytes, binding: bytes) -> bytes | None:
        """A server's proof, for a client that has proved a secret, that it knows the same secret.

        None if no accepted secret was proved. The time it takes reveals nothing about the secrets.
        """
        proved = [
            each
            for each in self.secrets
            if proofs_match(shown, _proof(each, _CLIENT, client, server, binding))
        ]
        return _proof(proved[0], _SERVER, client, server, binding) if proved else None


def _proof(secret: bytes, role: bytes, client: bytes, server: bytes, binding: bytes) -> bytes:
    assert secret
    assert len(client) == len(server) == CHALLENGE_BYTES and len(binding) in (0, 32)
    return hmac.digest(secret, role + client + server + binding, "sha256")


def _check_renewed(new: Security, old: Security) -> None:
    assert new.tls is not None and old.tls is not None
    if new.encrypts:
        new.tls.read_as(old.tls)


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
