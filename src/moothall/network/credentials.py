"""The operator's credentials for package indexes, which never enter a sandbox.

A tunnel to a host with a credential ends in the proxy, which adds the credential to the encrypted
request. The proxy's certificates come from an authority that is created for one set-up and trusted
only by it; its keys never leave this process.
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

_VALIDITY = dt.timedelta(days=2)
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Credential:
    """An `Authorization` header value for requests below `url`."""

    url: URL
    authorization: str

    def covers(self, url: URL) -> bool:
        """Whether a request is below `url`. A path with `..` never is, in any spelling."""
        steps = url.path.replace("\\", "/").split("/")
        prefix = self.url.path.rstrip("/") + "/"
        return (
            self.url.origin() == url.origin()
            and ".." not in steps
            and f"{url.path}/".startswith(prefix)
        )


class Credentials:
    """The operator's credentials, and the certificates that the proxy needs to add them.

    `bundle` is the PEM bundle for the sandbox: the certificates that this machine trusts,
    `certificates`, and our authority. Raises `ConfigurationError` if a certificate file cannot be
    read.
    """

    def __init__(self, entries: Iterable[Credential], certificates: Iterable[Path]) -> None:
        self._entries = sorted(entries, key=lambda entry: -len(entry.url.path))
        self.upstream_context = ssl.create_default_context()
        pem = [text for path in _SYSTEM_BUNDLES if (text := _read(Path(path)))][:1]
        for path in certificates:
            try:
                self.upstream_context.load_verify_locations(path)
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
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.bundle = "\n".join((*pem, authority.public_bytes(Encoding.PEM).decode()))

    def has_credential_for(self, url: URL) -> bool:
        """Whether there is a credential for a URL's host and port."""
        return any(entry.url.origin() == url.origin() for entry in self._entries)

    def authorization(self, url: URL) -> str:
        """Return the header value of the most specific credential for `url`, or ''."""
        return next((entry.authorization for entry in self._entries if entry.covers(url)), "")

    def server_context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context with which the proxy acts as `host` towards the sandbox."""
        if host not in self._contexts:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = (
                self._certificate(x509.Name([]), key)
                .add_extension(
                    x509.SubjectAlternativeName([_alternative_name(host)]), critical=True
                )
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_key_usage(signs=False), critical=True)
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
            ):  # mode 0600; the ssl module accepts only a file
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
            .not_valid_before(now - _VALIDITY / 2)
            .not_valid_after(now + _VALIDITY)
        )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
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
