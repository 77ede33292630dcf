"""The certificate of the API's TLS: read at the start, and again when its files change, so that a renewed one needs no restart."""

import hashlib
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

from node.core.errors import PippinError
from node.host.private_file import exposed, repair

log = logging.getLogger(__name__)


class CertificateUnusable(PippinError):
    """The files of --tls-cert and --tls-key cannot be used. The node then does not start: keys would travel in the clear."""

    code = "certificate_unusable"


class Certificate:
    """Raises CertificateUnusable."""

    def __init__(self, chain: Path, key: Path) -> None:
        """PEM files: the certificate, with those between it and its authority behind it, and its private key."""
        self._files = chain, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        """New connections use what was read last."""
        self.fingerprint = ""
        """SHA-256 of the certificate, in hexadecimal digits."""
        self._seen: Sequence[tuple[int, int]] = ()
        self._read()

    def renew(self) -> None:
        """Read the files if they have changed. Those that can't be used are left alone, as they may be only half written."""
        before = self.fingerprint
        try:
            if self._state() == self._seen:
                return
            self._read()
        except (CertificateUnusable, OSError) as error:
            log.warning("the certificate stays as it was: %s", error)
            return
        if self.fingerprint != before:
            log.info("the certificate was renewed: its SHA-256 is %s", self.fingerprint)

    def _state(self) -> list[tuple[int, int]]:
        found = [path.stat() for path in self._files]
        return [(each.st_mtime_ns, each.st_ino) for each in found]

    def _read(self) -> None:
        chain, key = self._files
        try:
            self._seen = self._state()
            with key.open("rb") as file:
                if others := exposed(file.fileno(), key):
                    raise CertificateUnusable(f"{others}.", hint=f"{repair(key)}.")
            first = chain.read_text("ascii").partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER
            fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[first.index(ssl.PEM_HEADER) :])).hexdigest()
            # Tried apart, as a failure would leave the context with half of a pair.
            for context in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self.context):
                context.load_cert_chain(chain, key, password=_no_password)
        except ssl.SSLError as error:
            why = "they do not belong together" if "MISMATCH" in (error.reason or "") else f"{error.reason or error}"
            raise CertificateUnusable(f"{chain} and {key} can't be used: {why}.", hint=_HINT) from error
        except OSError as error:
            raise CertificateUnusable(f"{error.filename} can't be read ({error.strerror}).", hint=_HINT) from error
        except ValueError as error:
            why = str(error) if isinstance(error, _Encrypted) else f"{chain} has no certificate in PEM"
            raise CertificateUnusable(f"{why[:1].upper()}{why[1:]}.", hint=_HINT) from error
        self.fingerprint = fingerprint


_HINT = "--tls-cert takes a certificate in PEM, with its chain, and --tls-key its private key, without a password."


class _Encrypted(ValueError):
    pass


def _no_password() -> bytes:
    raise _Encrypted("the key has a password")
