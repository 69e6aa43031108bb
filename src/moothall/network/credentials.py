"""Whose name is said where: the operator's credentials of package indexes, which stay outside the
wall.

A tunnel to a host that they hold at ends in the proxy, so that they can be added to what is
encrypted: with certificates of an authority that lives as long as one set-up, is trusted by that
set-up alone and whose keys never leave this process.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from yarl import URL

from moothall.errors import ConfigurationError

_LIFE = dt.timedelta(days=2)
_SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Credential:
    """`authorization` is said to what lies below `url`."""

    url: URL
    authorization: str

    def holds_for(self, url: URL) -> bool:
        """Whether a URL lies below its own. One that goes up again, in any spelling, does not."""
        steps = url.path.replace("\\", "/").split("/")
        below = self.url.path.rstrip("/") + "/"
        return (
            self.url.origin() == url.origin()
            and ".." not in steps
            and f"{url.path}/".startswith(below)
        )


class Credentials:
    """The operator's credentials, and the certificates that the proxy needs to add them.

    `bundle` is what the walled side is to trust, as PEM: what this machine does, `certificates`,
    and our authority. Raises `ConfigurationError` where a file of certificates cannot be read.
    """

    def __init__(self, entries: Iterable[Credential], certificates: Iterable[Path]) -> None:
        self._entries = sorted(entries, key=lambda entry: -len(entry.url.path))
        self.outside = ssl.create_default_context()
        pem = [text for path in _SYSTEM if (text := _read(Path(path)))][:1]
        for path in certificates:
            try:
                self.outside.load_verify_locations(path)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"the certificates in {path} cannot be read: {error}"
                ) from error
            pem.append(_read(path))
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Moothall set-up")])
        authority = (
            self._certificate(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_use(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.bundle = "\n".join((*pem, authority.public_bytes(Encoding.PEM).decode()))

    def hold_at(self, url: URL) -> bool:
        """Whether there is one for something at a URL's host and port."""
        return any(entry.url.origin() == url.origin() for entry in self._entries)

    def authorization(self, url: URL) -> str:
        """Return what to say when `url` is read, of the credential that is nearest to it; '' for
        nothing.
        """
        return next((entry.authorization for entry in self._entries if entry.holds_for(url)), "")

    def inside(self, host: str) -> ssl.SSLContext:
        """Return what the proxy shows the walled side as `host`."""
        if host not in self._contexts:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = (
                self._certificate(x509.Name([]), key)
                .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=True)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_use(signs=False), critical=True)
                .add_extension(
                    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
                )
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                    critical=False,
                )
                .sign(self._key, hashes.SHA256())
            )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1"])
            with (
                tempfile.NamedTemporaryFile() as file
            ):  # mode 0600; the library takes no other than a file
                file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
                file.write(certificate.public_bytes(Encoding.PEM))
                file.flush()
                context.load_cert_chain(file.name)
            self._contexts[host] = context
        return self._contexts[host]

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE / 2)
            .not_valid_after(now + _LIFE)
        )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _use(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
