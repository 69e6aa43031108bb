"""What is read of the process's environment beside the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# uvloop starts programs by fork(), in which gRPC's handlers of a fork run: while gRPC is busy, every tenth program or so died of
# them before it began (a failed assertion in its pollers). Nothing of ours uses gRPC in a child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_PACKAGE_VARIABLES = (
    "PIP_",
    "UV_",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_REGISTRY",
    "GOPROXY",
    "GOSUMDB",
)


def package_environment() -> dict[str, str]:
    """Return the variables that tell package managers where to download from, for set-up commands."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PACKAGE_VARIABLES)}


def package_files() -> dict[str, Path]:
    """Return the configuration files of package managers that exist, by the variable that names one."""
    candidates = {
        "PIP_CONFIG_FILE": ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"),
        "UV_CONFIG_FILE": ("~/.config/uv/uv.toml", "/etc/uv/uv.toml"),
    }
    found = {}
    for variable, paths in candidates.items():
        existing = [
            path for path in (Path(os.environ.get(variable) or ""), *(Path(p).expanduser() for p in paths)) if path.is_file()
        ]
        if existing:
            found[variable] = existing[0]
    return found


def environment() -> Mapping[str, str]:
    """Return the process's environment, for credentials that a registered repository names by variable."""
    return dict(os.environ)
