"""A forward proxy: the only network access of a browser and of a repository's set-up. The
operator's credentials for package indexes, which never enter a sandbox.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from yarl import URL

from moothall.errors import CallFailed, ConfigurationError, InvalidRequest, Refused
from moothall.network.destinations import Destinations, Unreachable

# The operator's credentials for package indexes, which never enter a sandbox.
#
# A tunnel to a host with a credential ends in the proxy, which adds the credential to the encrypted
# request. The proxy's certificates come from an authority that is created for one set-up and
# trusted only by it; its keys never leave this process.


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
        """Return whether a request is below `url`. A path with `..` never is, in any spelling."""
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
        pem = [text for path in _SYSTEM_BUNDLES if (text := _read_text(Path(path)))][:1]
        for path in certificates:
            try:
                self.upstream_context.load_verify_locations(path)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"the certificates in {path} cannot be read: {error}"
                ) from error
            pem.append(_read_text(path))
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
        """Return whether there is a credential for a URL's host and port."""
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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


# A forward proxy: the only network access of a browser and of a repository's set-up. It connects
# only to allowed destinations.
#
# Each name is resolved once, here, and the proxy connects to the address that was checked. This
# covers pages, their resources, redirects and websockets alike. The operator's credentials are
# added here, outside the sandbox: a tunnel to a host with a credential ends in this process, which
# forwards only read requests.


CHUNK = 65_536
_HEAD_SECONDS, _CONNECT_SECONDS, _CLOSE_SECONDS = 20.0, 10.0, 5.0
_CONNECTIONS, _ACCEPTING = 128, 5
_READ_METHODS = frozenset({b"GET", b"HEAD"})
_HOP_HEADERS = frozenset(
    {b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"te", b"upgrade"}
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _TransferLimitReached(OSError):
    """A call transferred more bytes than it may."""


@dataclass(slots=True)
class Proxy:
    """A forward proxy. `bytes_left` bytes may still pass. `refused` maps each refused host and port
    to the reason. `credentials` are added to read requests that they cover.
    """

    destinations: Destinations
    bytes_left: int
    credentials: Credentials | None = None
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A failure ends it."""
        if len(self._open) >= _CONNECTIONS:
            writer.transport.abort()
            return
        self._idle.clear()
        self._open.add(writer)
        try:
            await self._answer(reader, writer)
        except* (
            OSError,
            EOFError,
            asyncio.LimitOverrunError,
            ValueError,
            RuntimeError,
            Refused,
            InvalidRequest,
            CallFailed,
        ):
            # The client sees that the connection ended; `refused` has the reason. uvloop raises a
            # RuntimeError for a write to a closed connection.
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            if not self._open:
                self._idle.set()

    async def close(self) -> None:
        """End every connection."""
        for writer in tuple(self._open):
            writer.transport.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._idle.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        tunnel = method == b"CONNECT"
        url = URL(("http://" if tunnel else "") + target.decode("ascii"))
        if not tunnel and url.scheme != "http":
            raise ValueError("a proxy request must be for http:// or CONNECT")
        origin = URL(f"https://{target.decode('ascii')}") if tunnel else url.origin()
        tls = (
            self.credentials.upstream_context
            if tunnel and self.credentials and self.credentials.has_credential_for(origin)
            else None
        )
        try:
            upstream = await self._connect(url, tls)
        except (Refused, InvalidRequest, CallFailed) as error:
            if isinstance(error, Refused):
                self.refused[url.host or "", url.port or 0] = error.message
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            await writer.drain()
            return
        try:
            if tls:
                await self._serve_with_credential(origin, reader, writer, upstream)
                return
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                upstream[1].write(self._request(method, url, headers))
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    copy_stream(reader, upstream[1], self._count_bytes), name="proxy-out"
                )
                group.create_task(
                    copy_stream(upstream[0], writer, self._count_bytes), name="proxy-in"
                )
        finally:
            upstream[1].transport.abort()

    async def _serve_with_credential(
        self,
        origin: URL,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: Streams,
    ) -> None:
        """End the tunnel here: forward one read request to `origin` with the credential."""
        assert self.credentials  # noqa: S101 - checked by the caller
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.timeout(_HEAD_SECONDS):
            await writer.start_tls(self.credentials.server_context(origin.host or ""))
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        if method in _READ_METHODS:
            if not target.startswith(b"/"):
                raise ValueError("the request target must be a path")
            upstream[1].write(
                self._request(
                    method, URL(f"{origin.origin()}{target.decode('ascii')}", encoded=True), headers
                )
            )
            await copy_stream(upstream[0], writer, self._count_bytes)
        else:
            writer.write(
                b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
        async with asyncio.timeout(_CLOSE_SECONDS):
            writer.close()
            await writer.wait_closed()

    def _request(self, method: bytes, url: URL, headers: bytes) -> bytes:
        """Return the head of a request that closes its connection afterwards, with the operator's
        credential if one covers it.
        """
        authorization = (
            self.credentials.authorization(url)
            if self.credentials and method in _READ_METHODS
            else ""
        )
        dropped = _HOP_HEADERS | {b"authorization", b"cookie"} if authorization else _HOP_HEADERS
        kept_headers = [
            line
            for line in headers.split(b"\r\n")
            if line.partition(b":")[0].strip().lower() not in dropped
        ]
        added_headers = [
            b"Connection: close",
            *([b"Authorization: " + authorization.encode("latin-1")] if authorization else []),
        ]
        return b"\r\n".join(
            (
                method + b" " + url.raw_path_qs.encode("ascii") + b" HTTP/1.1",
                *added_headers,
                *kept_headers,
            )
        )

    def _count_bytes(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise _TransferLimitReached

    async def _connect(self, url: URL, tls: ssl.SSLContext | None) -> Streams:
        """Connect to an allowed address of a host. Raises `Refused`, `InvalidRequest`,
        `CallFailed`.
        """
        self.destinations.check(str(url.origin()))
        is_named = self.destinations.is_named(url)
        refused = failed = ""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                for address_info in await asyncio.get_running_loop().getaddrinfo(
                    url.host, url.port, type=socket.SOCK_STREAM
                ):
                    try:
                        connection = (
                            socket.socket(*address_info[:3])
                            if is_named
                            else self.destinations.open_socket(address_info)
                        )
                        return await _open_streams(connection, address_info[4], tls, url.host)
                    except Unreachable as error:
                        refused = refused or str(error)
                    except OSError as error:
                        failed = failed or str(error.strerror or error)
        except (OSError, UnicodeError) as error:  # no such name, or no answer in time
            raise CallFailed(f"{url.host} cannot be reached") from error
        if failed:
            raise CallFailed(f"{url.host} cannot be reached: {failed}")
        raise Refused(f"{url.host}: {refused or 'it has no address'}")


async def copy_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count_bytes: Callable[[int], None]
) -> None:
    """Copy a stream until it ends. `count_bytes` is called with the size of each chunk before it is
    written, and ends the copy by raising an exception.
    """
    while chunk := await reader.read(CHUNK):
        count_bytes(len(chunk))
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _open_streams(
    connection: socket.socket, address: Any, tls: ssl.SSLContext | None, host: str | None
) -> Streams:
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
        return await asyncio.open_connection(
            sock=connection, limit=CHUNK, ssl=tls, server_hostname=host if tls else None
        )
    except BaseException:
        connection.close()
        raise


@asynccontextmanager
async def run_proxy(
    destinations: Destinations,
    listening: socket.socket,
    max_bytes: int,
    credentials: Credentials | None = None,
) -> AsyncIterator[Proxy]:
    """Serve a proxy on a listening socket until the context ends, and close its connections."""
    proxy = Proxy(destinations, max_bytes, credentials)
    server = await asyncio.start_server(proxy.serve, sock=listening, limit=CHUNK)
    try:
        yield proxy
    finally:
        server.close()
        # A socket accepted just now becomes a connection after a few rounds of the event loop.
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)
        await proxy.close()


async def receive_listener(channel: socket.socket) -> socket.socket:
    """Return the listening socket that a sandbox opened and sends over `channel`. Raises
    `ConnectionError` if the sandbox ended.
    """
    channel.setblocking(False)
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(channel)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise ConnectionError("the sandbox ended")
    listening = socket.socket(fileno=descriptors[0])
    listening.set_inheritable(False)  # a received descriptor is inheritable
    listening.setblocking(False)
    return listening
