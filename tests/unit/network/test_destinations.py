"""The destinations that tools may reach."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import ConfigurationError, InvalidRequest, Refused
from moothall.network.destinations import Destinations, Unreachable, is_public

INSIDE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - it means this machine
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "2001:db8::1",
]
OUTSIDE = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", INSIDE)
def test_no_internal_address_is_public(address: str) -> None:
    """Loopback, private, link-local, metadata and multicast addresses, and their IPv6 forms."""
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(Unreachable):
        Destinations().open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 80)))


@pytest.mark.parametrize("address", OUTSIDE)
def test_internet_addresses_are_public(address: str) -> None:
    """They may be reached unless only named hosts are allowed."""
    assert is_public(ipaddress.ip_address(address))
    assert not Destinations.read(["api.example.org"], only=True).may_reach(
        ipaddress.ip_address(address)
    )


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_the_same_in_ipv6(address: ipaddress.IPv4Address) -> None:
    """A mapped address is the same address; one of a translating network is never reached."""
    assert is_public(ipaddress.ip_address(f"::ffff:{address}")) == is_public(address)
    assert not is_public(ipaddress.IPv6Address((0x0064FF9B << 96) | int(address)))


def test_allowed_networks_and_hosts_are_read() -> None:
    """Networks are given by address, hosts by name with or without a port."""
    destinations = Destinations.read(
        ["10.1.0.0/16", "Intern.Example.org", "localhost:8080"], only=False
    )
    assert destinations.may_reach(ipaddress.ip_address("10.1.2.3"))
    assert destinations.may_reach(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert not destinations.may_reach(ipaddress.ip_address("10.2.0.1"))
    assert destinations.is_named(destinations.check("https://intern.example.org./x"))
    assert destinations.is_named(destinations.check("http://localhost:8080/"))
    assert not destinations.is_named(destinations.check("http://localhost:8081/"))


@pytest.mark.parametrize("entry", ["", "http://x", "*.example.org", "me@example.org", "10.0.0.1/8"])
def test_an_invalid_entry_is_named(entry: str) -> None:
    """The error gives a valid form."""
    with pytest.raises(ConfigurationError, match="an entry is a host such as"):
        Destinations.read([entry], only=False)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://x",
        "javascript:alert(1)",
        "//x",
        "x",
        "http://",
        "http://[::1",
    ],
)
def test_an_invalid_web_url_is_refused(url: str) -> None:
    """A URL may be refused for its scheme or its form."""
    with pytest.raises(InvalidRequest, match="URL such as"):
        Destinations().check(url)


def test_credentials_in_a_url_are_refused() -> None:
    """They would end up in logs, and disguise the destination of a call."""
    with pytest.raises(Refused, match="user or password"):
        Destinations().check("https://example.org@127.0.0.1/")


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_clear_refusal(text: str) -> None:
    """No other error is raised."""
    with suppress(InvalidRequest, Refused):
        assert Destinations().check(f"http://{text}").host
