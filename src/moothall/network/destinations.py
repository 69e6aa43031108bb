"""Which addresses a tool, or a repository's set-up, may reach: public ones, and what the operator
allows.

A name is resolved once, and the address that is connected to is the one that was judged: the
judgement is made where the socket is opened, so that neither a second answer of the name server nor
an address written in another way gets around it.
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
_INSIDE = tuple(
    ipaddress.ip_network(text) for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")
)
"""Not private by the library's tables, or not by those of every Python: a cloud's own services, and
protocol assignments.
"""

_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given out on the internet."""

_WRAPPING = tuple(ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32"))
"""Networks in it whose addresses stand for IPv4 ones: 6to4 and Teredo."""


class Unreachable(OSError):
    """An address that no tool may connect to."""


def is_public(address: Address) -> bool:
    """Whether an address is anybody's on the internet: not of this machine, this network, this link
    or a cloud's insides.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        return (
            address in _UNICAST
            and address.is_global
            and not any(address in network for network in _WRAPPING)
        )
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _INSIDE)
    )


@dataclass(frozen=True, slots=True)
class Destinations:
    """What the operator says: `hosts` (`name` or `name:port`) and `networks` may be reached
    whatever they are;
    `only`: nothing else may; `setting` is where they say it.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = field(default=())
    only: bool = False
    setting: str = "http.allow"

    @classmethod
    def read(
        cls, allowed: Sequence[str], *, only: bool, setting: str = "http.allow"
    ) -> Destinations:
        """Read the setting. Raises `ConfigurationError` naming the entry that is wrong."""
        hosts, networks = set(), []
        for entry in (text.strip().lower() for text in allowed):
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
        """Whether the operator named this host: then its address is not judged."""
        host = (url.host or "").lower().rstrip(".")
        return host in self.hosts or f"{host}:{url.port or _PORTS.get(url.scheme)}" in self.hosts

    def check(self, text: str) -> URL:
        """Return the URL if it is one that a tool may call. Raises `InvalidRequest` and
        `Refused`.
        """
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
            raise Refused(
                "a URL with a user or password in it is not called; send a header instead"
            )
        if self.only and not self.is_named(url) and not self.networks:
            raise Refused(
                f"{url.host} is not among the hosts that the operator allows ({self.setting})"
            )
        return url

    def may_reach(self, address: Address) -> bool:
        """Whether a tool may connect to an address of a host that the operator did not name."""
        plain = (
            address.ipv4_mapped
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped
            else address
        )
        if any(plain in network for network in self.networks):
            return True
        return not self.only and is_public(address)

    async def pin(self, text: str) -> str:
        """Return `host:port:address` of a URL, with the address that may be connected to. Raises
        `InvalidRequest`, `Refused`.
        """
        url = self.check(text)
        host, port = url.host or "", url.port or 0
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):
            found = []  # said as below: whether a name is known inside is nothing for who asks
        for *_, where in found:
            address = ipaddress.ip_address(str(where[0]).partition("%")[0])
            if self.is_named(url) or self.may_reach(address):
                shown = (
                    f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)
                )
                return f"{host}:{port}:{shown}"
        raise Refused(
            f"{host} has no address, or no public one, and the operator does not allow it "
            f"({self.setting})"
        )

    def open_socket(self, about: tuple[Any, ...]) -> socket.socket:
        """Make the socket for what a name was resolved to: (family, type, protocol, name, address).
        Raises `Unreachable`.
        """
        family, kind, protocol, _, where = about
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        if not self.may_reach(address):
            raise Unreachable(
                f"{address} is not a public address, and the operator does not allow it "
                f"({self.setting})"
            )
        return socket.socket(family, kind, protocol)
