"""The network access of set-ups: the operator's package indexes, from the configuration of pip, uv,
npm, Go and Cargo, through our proxy, without the operator's secrets.
"""

from __future__ import annotations

import base64
import configparser
import netrc
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from yarl import URL

from moothall.config import WorkspaceSections
from moothall.errors import ConfigurationError
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


# The operator's package indexes. Data for set-ups is separated from secrets: user and password are
# removed from URLs, tokens are omitted, and only the settings listed here are passed on.


_PIP_INDEX_OPTIONS = (
    "INDEX_URL",
    "EXTRA_INDEX_URL",
    "FIND_LINKS",
    "NO_INDEX",
    "TRUSTED_HOST",
    "CONSTRAINT",
    "DEFAULT_TIMEOUT",
    "TIMEOUT",
    "RETRIES",
)
_PIP_OTHER_OPTIONS = (
    "PREFER_BINARY",
    "ONLY_BINARY",
    "NO_BINARY",
    "PRE",
    "DISABLE_PIP_VERSION_CHECK",
)
_UV_OPTIONS = (
    "DEFAULT_INDEX",
    "INDEX",
    "INDEX_URL",
    "EXTRA_INDEX_URL",
    "FIND_LINKS",
    "NO_INDEX",
    "INDEX_STRATEGY",
    "INSECURE_HOST",
    "HTTP_TIMEOUT",
)
_GO_VARIABLES = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOINSECURE")
_PASSED_VARIABLES = frozenset(
    (
        *(f"PIP_{name}" for name in (*_PIP_INDEX_OPTIONS, *_PIP_OTHER_OPTIONS)),
        *(f"UV_{name}" for name in _UV_OPTIONS),
        *_GO_VARIABLES,
    )
)
_OPERATOR_CERTIFICATE_VARIABLES = (
    "PIP_CERT",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)
_PIP_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")
_NPM_FILES = ("/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc")
_URL = re.compile(r"(?:sparse\+)?(https?://[^\s,|;\"']+)")


@dataclass(slots=True)
class Indexes:
    """The package indexes for set-ups. `variables` and `files` (content by the variable with the
    path) are visible to set-ups and contain no secrets. Set-ups may access `urls`. `credentials`
    (URL, Authorization header) stay outside of the sandbox. `paths` and `certificates` are files.
    """

    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)
    credentials: list[tuple[str, str]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)

    def add_variable(self, name: str, value: str) -> None:
        """Add a variable for set-ups, without the credentials of its URLs."""
        self.variables[name] = _URL.sub(
            lambda match: match[0].replace(match[1], self.add_url(match[1])), value
        )
        self.paths += [
            Path(word)
            for word in value.replace("file://", "").split()
            if word.startswith("/") and Path(word).exists()
        ]

    def add_url(self, url: str) -> str:
        """Add a URL and its credentials, and return the URL without them."""
        parts = urlsplit(url)
        bare = urlunsplit(
            (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, parts.fragment)
        )
        self.urls.append(bare)
        if "@" in parts.netloc:
            self.credentials.append(
                (
                    f"{_origin(bare)}/",
                    basic(unquote(parts.username or ""), unquote(parts.password or "")),
                )
            )
        return bare


def basic(user: str, password: str) -> str:
    """Return the Authorization header of basic authentication."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def read_indexes(
    environ: Mapping[str, str] | None = None, home: Path | None = None, root: Path = Path("/")
) -> Indexes:
    """Read the configuration of the process's user and of the machine, whose files are under
    `root`. Raises `ConfigurationError`, which names the file that cannot be read.
    """
    environ, home = os.environ if environ is None else environ, home or Path.home()
    indexes = Indexes()
    settings = {
        **_read_pip(environ, home, root),
        **_read_uv(environ, home, root),
        **_read_go(environ, home),
    }
    settings |= {name: value for name, value in environ.items() if value}
    for name in sorted(_PASSED_VARIABLES & settings.keys()):
        indexes.add_variable(name, settings[name])
    _add_uv_credentials(settings, indexes)
    _add_npm(environ, home, root, indexes)
    _add_cargo(environ, home, indexes)
    certificates = [
        Path(settings[name]) for name in _OPERATOR_CERTIFICATE_VARIABLES if settings.get(name)
    ]
    indexes.certificates += [path for path in dict.fromkeys(certificates) if path.is_file()]
    _add_netrc(Path(environ.get("NETRC") or home / ".netrc"), indexes)
    return indexes


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _read_text(path: Path) -> str:
    """Return the content of a file; '' if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _files(
    environ: Mapping[str, str], variable: str, names: tuple[str, ...], home: Path, root: Path
) -> Iterator[tuple[Path, str]]:
    paths = [home / name[2:] if name.startswith("~/") else root / name[1:] for name in names]
    for path in (*paths, *([Path(environ[variable])] if environ.get(variable) else ())):
        if text := _read_text(path):
            yield path, text


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error


def _read_pip(environ: Mapping[str, str], home: Path, root: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path, text in _files(environ, "PIP_CONFIG_FILE", _PIP_FILES, home, root):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error as error:
            raise ConfigurationError(f"{path} is not a configuration of pip: {error}") from error
        for section in ("global", "install"):
            if parser.has_section(section):
                values = (
                    (f"PIP_{key.upper().replace('-', '_')}", value)
                    for key, value in parser.items(section)
                )
                settings |= {name: " ".join(value.split()) for name, value in values}
    return settings


def _read_uv(environ: Mapping[str, str], home: Path, root: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path, text in _files(environ, "UV_CONFIG_FILE", _UV_FILES, home, root):
        table = _parse_toml(path, text)
        for key, value in {**table.get("pip", {}), **table}.items():
            values = value if isinstance(value, list) else [value]
            if all(isinstance(item, str) for item in values):
                settings[f"UV_{key.upper().replace('-', '_')}"] = " ".join(values)
        entries = [
            entry
            for entry in table.get("index", [])
            if isinstance(entry, dict) and isinstance(entry.get("url"), str)
        ]
        extra = [
            f"{entry['name']}={entry['url']}" if entry.get("name") else entry["url"]
            for entry in entries
            if not entry.get("default")
        ]
        settings |= {"UV_INDEX": " ".join(extra)} if extra else {}
        if default := next((entry["url"] for entry in entries if entry.get("default")), ""):
            settings["UV_DEFAULT_INDEX"] = default
    return settings


def _add_uv_credentials(settings: Mapping[str, str], indexes: Indexes) -> None:
    """Add the credentials in UV_INDEX_<NAME>_USERNAME and UV_INDEX_<NAME>_PASSWORD for the named
    indexes.
    """
    for entry in (*settings.get("UV_INDEX", "").split(), settings.get("UV_DEFAULT_INDEX", "")):
        name, separator, url = entry.partition("=")
        variable = f"UV_INDEX_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"
        user, password = (
            settings.get(f"{variable}_USERNAME", ""),
            settings.get(f"{variable}_PASSWORD", ""),
        )
        if separator and "/" not in name and (user or password):
            indexes.credentials.append((f"{_origin(url)}/", basic(user, password)))


def _read_go(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    text = _read_text(Path(environ.get("GOENV") or home / ".config/go/env"))
    return {
        name: value
        for name, _, value in (line.partition("=") for line in text.splitlines())
        if name in _GO_VARIABLES and value
    }


def _add_npm(environ: Mapping[str, str], home: Path, root: Path, indexes: Indexes) -> None:
    variables = {
        name.lower(): value
        for name, value in environ.items()
        if name.lower().startswith("npm_config_")
    }
    user_file = variables.get("npm_config_userconfig") or str(home / ".npmrc")
    settings: dict[str, str] = {}
    files = (
        *(root / name[1:] for name in _NPM_FILES),
        Path(variables.get("npm_config_globalconfig") or os.devnull),
        Path(user_file),
    )
    for path in files:
        for line in _read_text(path).splitlines():
            key, _, value = (part.strip().strip("\"'") for part in line.partition("="))
            if key and not key.startswith((";", "#")):
                settings[key] = re.sub(
                    r"\$\{([^}]+)\}", lambda match: environ.get(match[1], ""), value
                )
    settings |= {name.removeprefix("npm_config_"): value for name, value in variables.items()}
    lines = []
    for key, value in settings.items():
        if key == "registry" or (key.startswith("@") and key.endswith(":registry")):
            lines.append(f"{key}={indexes.add_url(value)}")
        elif key == "cafile" and Path(value).is_file():
            indexes.certificates.append(Path(value))
    if lines:
        indexes.files["NPM_CONFIG_USERCONFIG"] = "\n".join(lines) + "\n"
    schemes = {urlsplit(url).netloc: urlsplit(url).scheme for url in indexes.urls}
    for key in settings:
        scope, _, field_name = key.rpartition(":")
        location = (
            scope
            if scope.startswith("//")
            else urlsplit(settings.get("registry", "")).geturl().partition(":")[2]
            if not scope
            else ""
        )
        authorization = _npm_authorization(field_name, settings, f"{scope}:" if scope else "")
        if location and authorization:
            host = location.removeprefix("//").partition("/")[0]
            url = f"{schemes.get(host, 'https')}:{location}"
            indexes.urls.append(url)
            indexes.credentials.append((url, authorization))


def _npm_authorization(field_name: str, settings: Mapping[str, str], prefix: str) -> str:
    """Return the Authorization header for a credential field of npm; '' for other fields."""
    value = settings.get(f"{prefix}{field_name}", "")
    if field_name == "_authToken" and value:
        return f"Bearer {value}"
    if field_name == "_auth" and value:
        return f"Basic {value}"
    if field_name == "_password" and value:
        try:
            return basic(settings.get(f"{prefix}username", ""), base64.b64decode(value).decode())
        except ValueError as error:
            raise ConfigurationError(f"npm's {prefix}_password is not in base64") from error
    return ""


def _add_cargo(environ: Mapping[str, str], home: Path, indexes: Indexes) -> None:
    """Add the operator's registries. Their tokens are not read."""
    folder = Path(environ.get("CARGO_HOME") or home / ".cargo")
    for name in ("config.toml", "config"):
        if text := _read_text(folder / name):
            for registry, entry in _parse_toml(folder / name, text).get("registries", {}).items():
                if isinstance(entry, dict) and isinstance(entry.get("index"), str):
                    indexes.add_variable(
                        f"CARGO_REGISTRIES_{registry.upper().replace('-', '_')}_INDEX",
                        entry["index"],
                    )


def _add_netrc(path: Path, indexes: Indexes) -> None:
    try:
        entries = netrc.netrc(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, netrc.NetrcParseError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for origin in dict.fromkeys(_origin(url) for url in indexes.urls):
        entry = entries.hosts.get(urlsplit(origin).hostname or "")
        if entry and not any(_origin(url) == origin for url, _ in indexes.credentials):
            indexes.credentials.append((f"{origin}/", basic(entry[0], entry[2] or "")))
