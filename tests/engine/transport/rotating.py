"""One side of a connection whose files are replaced while it is in use."""

import shutil
from pathlib import Path

from engine.access.secret_files import shared_secrets_in
from engine.transport.security import Security
from tests.engine.transport.certificates import Authority

OLD = "the cows come home at six"
NEW = "the cows come home at ten"
OF_OLD, OF_NEW = Security(secret=OLD.encode()), Security(secret=NEW.encode())


class Rotating:
    """The files of one side in a folder of their own, with two authorities that sign for it."""

    def __init__(self, folder: Path, name: str, *, tls: bool = True) -> None:
        self.folder = folder / name
        self.secret = self.folder / "secret"
        self.certificate = self.folder / "certificate"
        self.private_key = self.folder / "key"
        self.authorities = self.folder / "authorities"
        self.folder.mkdir()
        self._tls = tls
        self.write_secret(OLD)

    def write_secret(self, *lines: str) -> None:
        self.secret.write_text("\n".join(lines) + "\n")
        self.secret.chmod(0o600)

    def trust(self, *authorities: Authority) -> None:
        self.authorities.write_text("".join(each.path.read_text() for each in authorities))

    def certify(self, authority: Authority) -> None:
        signed = authority.sign(self.folder.name)
        shutil.copy(signed.certificate, self.certificate)
        shutil.copy(signed.private_key, self.private_key)

    def security(self) -> Security:
        """Its credentials, which can be read again."""
        return Security.renewed(self._read)

    def _read(self) -> Security:
        secret, other = shared_secrets_in(self.secret)
        if not self._tls:
            return Security(secret, other_secret=other)
        files = self.certificate, self.private_key, self.authorities
        return Security(secret, *files, other_secret=other)


def authorities_in(folder: Path) -> tuple[Authority, Authority]:
    """Two authorities, in folders of their own."""
    made = []
    for name in ("old", "new"):
        (folder / name).mkdir()
        made.append(Authority(folder / name, name))
    return made[0], made[1]
