"""Addresses that a tool, or a repository's set-up, may reach: public ones, and those that the
operator allows.

A name is resolved once, and the address that was checked is the one that is connected to. The check
happens where the socket is opened, so neither a second DNS answer nor another spelling of an
address can bypass it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from moothall.errors import ConfigurationError, InvalidRequest, Refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS = {"http": 80, "https": 443}
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text) for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")
)
"""Addresses that some Python versions do not treat as private: cloud services, and protocol
assignments.
"""

_UNICAST = ipaddress.ip_network("2000::/3")
"""The IPv6 addresses that are assigned on the internet."""

_EMBEDS_IPV4 = tuple(ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32"))
"""Networks in it whose addresses embed IPv4 addresses: 6to4 and Teredo."""


class Unreachable(OSError):
    """An address that no tool may connect to."""


def is_public(address: Address) -> bool:
    """Return whether an address is public: not of this machine, this network, this link or a
    cloud's internal services.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        return (
            address in _UNICAST
            and address.is_global
            and not any(address in network for network in _EMBEDS_IPV4)
        )
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


@dataclass(frozen=True, slots=True)
class Destinations:
    """Destinations that the operator allows: `hosts` (`name` or `name:port`) and `networks`.

    only: nothing else may be reached. setting: the name of the setting, for errors.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = field(default=())
    only: bool = False
    setting: str = "http.allow"

    @classmethod
    def read(
        cls, entries: Sequence[str], *, only: bool, setting: str = "http.allow"
    ) -> Destinations:
        """Parse the setting. Raises `ConfigurationError` that names the invalid entry."""
        hosts, networks = set(), []
        for entry in (text.strip().lower() for text in entries):
            try:
                networks.append(ipaddress.ip_network(entry))
                continue
            except ValueError:
                pass
            if not entry or "/" in entry or "*" in entry or "@" in entry:
                raise ConfigurationError(
                    f"{setting} has {entry!r}: an entry is a host such as api.example.org, "
                    "host:port, or a network such as 10.0.0.0/8"
                )
            hosts.add(entry)
        return cls(frozenset(hosts), tuple(networks), only, setting)

    def is_named(self, url: URL) -> bool:
        """Return whether the operator named this host; its address is then not checked."""
        host = (url.host or "").lower().rstrip(".")
        return host in self.hosts or f"{host}:{url.port or _PORTS.get(url.scheme)}" in self.hosts

    def check(self, text: str) -> URL:
        """Return the URL if a tool may call it. Raises `InvalidRequest` and `Refused`."""
        try:
            url = URL(text)
            port = url.port
        except (ValueError, UnicodeError) as error:
            raise InvalidRequest(
                f"{text[:120]!r} is not a URL such as https://example.org/page"
            ) from error
        if url.scheme not in _PORTS or not url.host or port is None:
            raise InvalidRequest(
                f"{text[:120]!r} is not an http:// or https:// URL such as https://example.org/page"
            )
        if url.user or url.password:
            raise Refused("a URL with a user or password may not be called; send a header instead")
        if self.only and not self.is_named(url) and not self.networks:
            raise Refused(
                f"{url.host} is not among the hosts that the operator allows ({self.setting})"
            )
        return url

    def may_reach(self, address: Address) -> bool:
        """Return whether a tool may connect to an address of a host that no operator named."""
        plain = (
            address.ipv4_mapped
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped
            else address
        )
        if any(plain in network for network in self.networks):
            return True
        return not self.only and is_public(address)

    async def pin(self, text: str) -> str:
        """Resolve a URL's host, and return `host:port:address` with an allowed address. Raises
        `InvalidRequest`, `Refused`.
        """
        url = self.check(text)
        host, port = url.host or "", url.port or 0
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):
            addresses = []  # same error as below: do not reveal whether an internal name exists
        for *_, socket_address in addresses:
            address = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
            if self.is_named(url) or self.may_reach(address):
                address_text = (
                    f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)
                )
                return f"{host}:{port}:{address_text}"
        raise Refused(
            f"{host} has no address, or no public one, and the operator does not allow it "
            f"({self.setting})"
        )

    def open_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """Create the socket for a result of getaddrinfo: (family, type, protocol, name, address).
        Raises `Unreachable`.
        """
        family, kind, protocol, _, socket_address = address_info
        address = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
        if not self.may_reach(address):
            raise Unreachable(
                f"{address} is not a public address, and the operator does not allow it "
                f"({self.setting})"
            )
        return socket.socket(family, kind, protocol)
