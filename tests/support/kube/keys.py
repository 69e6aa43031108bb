"""Certificates and kubeconfigs of a throw-away cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365


def authority(folder: Path) -> None:
    """Create the cluster's CA and the key that signs service account tokens if they are missing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "ca.crt").exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder / "ca.key", key)
        draft = _draft("moothall-throw-away", "", key).issuer_name(_name("moothall-throw-away", ""))
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        (folder / "ca.crt").write_bytes(draft.sign(key, SHA256()).public_bytes(Encoding.PEM))
    if not (folder / "sa.key").exists():
        _write(folder / "sa.key", rsa.generate_private_key(65537, 2048))


def certificate(
    folder: Path, file: str, name: str, group: str = "", alternative_names: tuple[str, ...] = ()
) -> None:
    """Write FILE.crt and FILE.key for a name in a group, valid for the other names and addresses
    too, if they are missing.
    """
    if (folder / f"{file}.crt").exists():
        return
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    draft = _draft(name, group, key).issuer_name(issuer.subject)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    draft = draft.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if alternative_names:
        draft = draft.add_extension(
            x509.SubjectAlternativeName(
                [_general_name(alternative_name) for alternative_name in alternative_names]
            ),
            critical=False,
        )
    _write(folder / f"{file}.key", key)
    (folder / f"{file}.crt").write_bytes(draft.sign(signer, SHA256()).public_bytes(Encoding.PEM))


def kubeconfig(folder: Path, file: str, server: str) -> None:
    """Write FILE.kubeconfig for the certificate of that name."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "throw-away",
        "contexts": [{"name": "throw-away", "context": {"cluster": "throw-away", "user": file}}],
        "clusters": [
            {
                "name": "throw-away",
                "cluster": {"server": server, "certificate-authority": str(folder / "ca.crt")},
            }
        ],
        "users": [
            {
                "name": file,
                "user": {
                    "client-certificate": str(folder / f"{file}.crt"),
                    "client-key": str(folder / f"{file}.key"),
                },
            }
        ],
    }
    (folder / f"{file}.kubeconfig").write_text(json.dumps(config), encoding="utf-8")


def _draft(name: str, group: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name, group))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _name(name: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, key: CertificateIssuerPrivateKeyTypes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
