"""What set-up gets of the network: the operator's package indexes through a proxy of ours, and none
of their secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from moothall.config import Indexes, WorkspaceSections, read_indexes
from moothall.network.destinations import Destinations
from moothall.sandbox.spawn import drop_uid, own

if TYPE_CHECKING:
    from moothall.network.credentials import Credentials

_USUAL = (
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "nodejs.org",  # the last: headers that addons are compiled with
    "proxy.golang.org",
    "sum.golang.org",
    "storage.googleapis.com",  # the last: where the first leaves large modules
    "index.crates.io",
    "static.crates.io",
    "crates.io",
)
_PORTS = {"http": 80, "https": 443}
_CONFIG = "/opt/config"
_TRUST = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
)


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """Where an executor may connect to through the proxy, as whom, and how many bytes; `ro` and
    `variables` tell it so.
    """

    destinations: Destinations
    credentials: Credentials
    most: int
    ro: tuple[tuple[Path, str], ...]
    variables: dict[str, str]


def setup_reach(folder: Path, settings: WorkspaceSections) -> NetworkAccess | None:
    """Return what a set-up may reach, None without a network; files that it is shown are written to
    `folder`.

    Raises `ConfigurationError` where a configuration of the operator's, or workspace.setup_hosts,
    cannot be read.
    """
    if settings.workspace.setup_network == "off":
        return None
    from moothall.network.credentials import (
        Credential,
        Credentials,
    )  # costs start time, which only set-up has

    indexes = read_indexes()
    places = [(one, urlsplit(one)) for one in indexes.urls]
    hosts = {f"{host}:443" for host in _USUAL} | {
        f"{at.hostname}:{at.port or _PORTS[at.scheme]}" for _, at in places
    }
    destinations = Destinations.read(
        (*sorted(hosts), *settings.workspace.setup_hosts),
        only=settings.workspace.setup_network == "allowlist",
        setting="workspace.setup_hosts",
    )
    credentials = Credentials(
        (Credential(URL(url), said) for url, said in indexes.credentials), indexes.certificates
    )
    ro, variables = _show(folder, indexes, credentials, drop_uid(settings.sandbox))
    local = {at.hostname for _, at in places}
    variables["NO_PROXY"] = variables["no_proxy"] = ",".join(
        sorted({"localhost", "127.0.0.1", "::1"} - local)
    )
    return NetworkAccess(destinations, credentials, settings.workspace.setup_bytes, ro, variables)


def _show(
    folder: Path, indexes: Indexes, credentials: Credentials, uid: int | None
) -> tuple[tuple[tuple[Path, str], ...], dict[str, str]]:
    binds, variables = (
        [(path, str(path)) for path in dict.fromkeys(indexes.paths)],
        dict(indexes.variables),
    )
    files = dict(indexes.files)
    if indexes.certificates or indexes.credentials:
        files |= dict.fromkeys(_TRUST, credentials.bundle)
    copies: dict[str, Path] = {}
    for variable, text in files.items():
        if text not in copies:
            copies[text] = (
                folder / f"{len(copies)}.conf"
            )  # a copy: the dropped uid may not read the operator's own
            copies[text].write_text(text, encoding="utf-8")
            own(copies[text], uid)
            binds.append((copies[text], f"{_CONFIG}/{copies[text].stem}"))
        variables[variable] = f"{_CONFIG}/{copies[text].stem}"
    return tuple(binds), variables
