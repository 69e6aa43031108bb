from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from moothall.app.preflight import check_ports
from moothall.config import GrpcSettings, MetricsSettings, Settings, WebSettings
from moothall.errors import ConfigurationError


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield int(listener.getsockname()[1])


def test_each_port_in_use_is_named_by_its_setting(used_port: int) -> None:
    free = {"grpc": GrpcSettings(port=0)}
    for invalid_settings, name in (
        ({"grpc": GrpcSettings(port=used_port)}, "grpc.port"),
        ({**free, "grpc": GrpcSettings(port=0, more_ports=(used_port,))}, "grpc.more_ports"),
        ({**free, "web": WebSettings(port=used_port)}, "web.port"),
        ({**free, "metrics": MetricsSettings(port=used_port)}, "metrics.port"),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"127\.0\.0\.1:{used_port} cannot be listened on: .*{name}"
        ):
            check_ports(Settings.model_validate(invalid_settings))


def test_ports_of_disabled_parts_may_be_in_use_and_checked_ports_stay_free(used_port: int) -> None:
    off = {
        "web": WebSettings(port=used_port, enabled=False),
        "metrics": MetricsSettings(port=used_port, enabled=False),
    }
    check_ports(Settings.model_validate({"grpc": GrpcSettings(port=0), **off}))
    with socket.socket() as own_socket:
        own_socket.bind(("127.0.0.1", 0))
        free = int(own_socket.getsockname()[1])
    check_ports(Settings(grpc=GrpcSettings(port=free)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free))


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1:0 cannot be listened on"):
        check_ports(Settings(grpc=GrpcSettings(host="192.0.2.1", port=0)))
