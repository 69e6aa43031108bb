"""The network access of set-ups: the operator's package indexes through our proxy, without the
operator's secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from moothall.config import WorkspaceSections
from moothall.config.package_indexes import Indexes, read_indexes
from moothall.network.destinations import Destinations
from moothall.sandbox.spawn import sandbox_uid, set_owner

if TYPE_CHECKING:
    from moothall.network.proxy import Credentials

_DEFAULT_HOSTS = (
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "nodejs.org",  # headers for compiling addons
    "proxy.golang.org",
    "sum.golang.org",
    "storage.googleapis.com",  # where proxy.golang.org stores large modules
    "index.crates.io",
    "static.crates.io",
    "crates.io",
)
_PORTS = {"http": 80, "https": 443}
_CONFIG = "/opt/config"
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
)
_SETUP_BYTES = 8_000_000_000
"""The most that one set-up may send and receive over the network."""


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """The network access of an executor.

    destinations, credentials: the hosts that it may reach through the proxy, and the credentials.
    max_bytes: the bytes that it may transfer.
    ro, variables: the files and variables that configure its programs for the proxy.
    """

    destinations: Destinations
    credentials: Credentials
    max_bytes: int
    ro: tuple[tuple[Path, str], ...]
    variables: dict[str, str]


def setup_network_access(folder: Path, settings: WorkspaceSections) -> NetworkAccess | None:
    """Return the network access of a set-up, None if there is no network. Files that it sees are
    written to `folder`.

    Raises `ConfigurationError` if the operator's configuration or workspace.setup_hosts cannot be
    read.
    """
    if settings.workspace.setup_network == "off":
        return None
    # Imported here to save start time.
    from moothall.network.proxy import Credential, Credentials

    indexes = read_indexes()
    urls = [(url, urlsplit(url)) for url in indexes.urls]
    hosts = {f"{host}:443" for host in _DEFAULT_HOSTS} | {
        f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}" for _, parts in urls
    }
    destinations = Destinations.read(
        (*sorted(hosts), *settings.workspace.setup_hosts),
        only=settings.workspace.setup_network == "allowlist",
        setting="workspace.setup_hosts",
    )
    credentials = Credentials(
        (Credential(URL(url), credential) for url, credential in indexes.credentials),
        indexes.certificates,
    )
    ro, variables = _show(folder, indexes, credentials, sandbox_uid())
    local = {parts.hostname for _, parts in urls}
    variables["NO_PROXY"] = variables["no_proxy"] = ",".join(
        sorted({"localhost", "127.0.0.1", "::1"} - local)
    )
    return NetworkAccess(destinations, credentials, _SETUP_BYTES, ro, variables)


def _show(
    folder: Path, indexes: Indexes, credentials: Credentials, uid: int | None
) -> tuple[tuple[tuple[Path, str], ...], dict[str, str]]:
    binds, variables = (
        [(path, str(path)) for path in dict.fromkeys(indexes.paths)],
        dict(indexes.variables),
    )
    files = dict(indexes.files)
    if indexes.certificates or indexes.credentials:
        files |= dict.fromkeys(_CERTIFICATE_VARIABLES, credentials.bundle)
    copies: dict[str, Path] = {}
    for variable, text in files.items():
        if text not in copies:
            # A copy, because the sandbox's uid may not read the operator's own file.
            copies[text] = folder / f"{len(copies)}.conf"
            copies[text].write_text(text, encoding="utf-8")
            set_owner(copies[text], uid)
            binds.append((copies[text], f"{_CONFIG}/{copies[text].stem}"))
        variables[variable] = f"{_CONFIG}/{copies[text].stem}"
    return tuple(binds), variables
