"""The operator's package indexes, as their own configuration of pip, uv, npm, Go and Cargo names
them.

What a set-up may know of it, and what it may not, are kept apart here: URLs lose user and password,
tokens are left out, and only settings that are named here are handed on at all.
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
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from moothall.errors import ConfigurationError

_PIP = (
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
_PIP_ALSO = ("PREFER_BINARY", "ONLY_BINARY", "NO_BINARY", "PRE", "DISABLE_PIP_VERSION_CHECK")
_UV = (
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
_GO = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOINSECURE")
_HANDED_ON = frozenset(
    (*(f"PIP_{name}" for name in (*_PIP, *_PIP_ALSO)), *(f"UV_{name}" for name in _UV), *_GO)
)
_CERTIFICATES = (
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
    """`variables` and `files` (by the variable that names one) are for the set-up to see and hold
    no secret; `urls` are where it may go; `credentials` (URL, what to say as Authorization) are for
    our side of the wall alone. `paths` and `certificates` are files.
    """

    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)
    credentials: list[tuple[str, str]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)

    def take(self, name: str, value: str) -> None:
        """Hand a setting on, less the credentials of its URLs."""
        self.variables[name] = _URL.sub(
            lambda found: found[0].replace(found[1], self.open(found[1])), value
        )
        self.paths += [
            Path(word)
            for word in value.replace("file://", "").split()
            if word.startswith("/") and Path(word).exists()
        ]

    def open(self, url: str) -> str:
        """Note a URL as one where set-ups may go, keep its credentials, and return it without."""
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
    """Return what is said as Authorization."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def read_indexes(
    environ: Mapping[str, str] | None = None, home: Path | None = None, root: Path = Path("/")
) -> Indexes:
    """Read the configuration of whom this process runs as, and of the machine whose files lie below
    `root`. Raises `ConfigurationError` naming a file that cannot be read.
    """
    environ, home = os.environ if environ is None else environ, home or Path.home()
    found = Indexes()
    settings = {**_pip(environ, home, root), **_uv(environ, home, root), **_go(environ, home)}
    settings |= {name: value for name, value in environ.items() if value}
    for name in sorted(_HANDED_ON & settings.keys()):
        found.take(name, settings[name])
    _name_indexes(settings, found)
    _npm(environ, home, root, found)
    _cargo(environ, home, found)
    named = [Path(settings[name]) for name in _CERTIFICATES if settings.get(name)]
    found.certificates += [path for path in dict.fromkeys(named) if path.is_file()]
    _netrc(Path(environ.get("NETRC") or home / ".netrc"), found)
    return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _files(
    environ: Mapping[str, str], variable: str, names: tuple[str, ...], home: Path, root: Path
) -> Iterator[tuple[Path, str]]:
    places = [home / name[2:] if name.startswith("~/") else root / name[1:] for name in names]
    for path in (*places, *([Path(environ[variable])] if environ.get(variable) else ())):
        if text := _text(path):
            yield path, text


def _toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error


def _pip(environ: Mapping[str, str], home: Path, root: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path, text in _files(environ, "PIP_CONFIG_FILE", _PIP_FILES, home, root):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error as error:
            raise ConfigurationError(f"{path} is no configuration of pip: {error}") from error
        for section in ("global", "install"):
            if parser.has_section(section):
                values = (
                    (f"PIP_{key.upper().replace('-', '_')}", value)
                    for key, value in parser.items(section)
                )
                settings |= {name: " ".join(value.split()) for name, value in values}
    return settings


def _uv(environ: Mapping[str, str], home: Path, root: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path, text in _files(environ, "UV_CONFIG_FILE", _UV_FILES, home, root):
        table = _toml(path, text)
        for key, value in {**table.get("pip", {}), **table}.items():
            words = value if isinstance(value, list) else [value]
            if all(isinstance(word, str) for word in words):
                settings[f"UV_{key.upper().replace('-', '_')}"] = " ".join(words)
        entries = [
            entry
            for entry in table.get("index", [])
            if isinstance(entry, dict) and isinstance(entry.get("url"), str)
        ]
        more = [
            f"{entry['name']}={entry['url']}" if entry.get("name") else entry["url"]
            for entry in entries
            if not entry.get("default")
        ]
        settings |= {"UV_INDEX": " ".join(more)} if more else {}
        if default := next((entry["url"] for entry in entries if entry.get("default")), ""):
            settings["UV_DEFAULT_INDEX"] = default
    return settings


def _name_indexes(settings: Mapping[str, str], found: Indexes) -> None:
    """Read what uv calls UV_INDEX_<NAME>_USERNAME and _PASSWORD, of indexes that the operator's
    settings name.
    """
    for word in (*settings.get("UV_INDEX", "").split(), settings.get("UV_DEFAULT_INDEX", "")):
        name, named, url = word.partition("=")
        variable = f"UV_INDEX_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"
        user, password = (
            settings.get(f"{variable}_USERNAME", ""),
            settings.get(f"{variable}_PASSWORD", ""),
        )
        if named and "/" not in name and (user or password):
            found.credentials.append((f"{_origin(url)}/", basic(user, password)))


def _go(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    text = _text(Path(environ.get("GOENV") or home / ".config/go/env"))
    return {
        name: value
        for name, _, value in (line.partition("=") for line in text.splitlines())
        if name in _GO and value
    }


def _npm(environ: Mapping[str, str], home: Path, root: Path, found: Indexes) -> None:
    lower = {
        name.lower(): value
        for name, value in environ.items()
        if name.lower().startswith("npm_config_")
    }
    user = lower.get("npm_config_userconfig") or str(home / ".npmrc")
    settings: dict[str, str] = {}
    files = (
        *(root / name[1:] for name in _NPM_FILES),
        Path(lower.get("npm_config_globalconfig") or os.devnull),
        Path(user),
    )
    for path in files:
        for line in _text(path).splitlines():
            key, _, value = (part.strip().strip("\"'") for part in line.partition("="))
            if key and not key.startswith((";", "#")):
                settings[key] = re.sub(
                    r"\$\{([^}]+)\}", lambda match: environ.get(match[1], ""), value
                )
    settings |= {name.removeprefix("npm_config_"): value for name, value in lower.items()}
    lines = []
    for key, value in settings.items():
        if key == "registry" or (key.startswith("@") and key.endswith(":registry")):
            lines.append(f"{key}={found.open(value)}")
        elif key == "cafile" and Path(value).is_file():
            found.certificates.append(Path(value))
    if lines:
        found.files["NPM_CONFIG_USERCONFIG"] = "\n".join(lines) + "\n"
    schemes = {urlsplit(url).netloc: urlsplit(url).scheme for url in found.urls}
    for key in settings:
        below, _, what = key.rpartition(":")
        where = (
            below
            if below.startswith("//")
            else urlsplit(settings.get("registry", "")).geturl().partition(":")[2]
            if not below
            else ""
        )
        said = _npm_says(what, settings, f"{below}:" if below else "")
        if where and said:
            url = f"{schemes.get(where.removeprefix('//').partition('/')[0], 'https')}:{where}"
            found.urls.append(url)
            found.credentials.append((url, said))


def _npm_says(what: str, settings: Mapping[str, str], prefix: str) -> str:
    value = settings.get(f"{prefix}{what}", "")
    if what == "_authToken" and value:
        return f"Bearer {value}"
    if what == "_auth" and value:
        return f"Basic {value}"
    if what == "_password" and value:
        try:
            return basic(settings.get(f"{prefix}username", ""), base64.b64decode(value).decode())
        except ValueError as error:
            raise ConfigurationError(f"npm's {prefix}_password is not in base64") from error
    return ""


def _cargo(environ: Mapping[str, str], home: Path, found: Indexes) -> None:
    """Note where registries of the operator's lie; their tokens are not read."""
    folder = Path(environ.get("CARGO_HOME") or home / ".cargo")
    for name in ("config.toml", "config"):
        if text := _text(folder / name):
            for registry, entry in _toml(folder / name, text).get("registries", {}).items():
                if isinstance(entry, dict) and isinstance(entry.get("index"), str):
                    found.take(
                        f"CARGO_REGISTRIES_{registry.upper().replace('-', '_')}_INDEX",
                        entry["index"],
                    )


def _netrc(path: Path, found: Indexes) -> None:
    try:
        entries = netrc.netrc(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, netrc.NetrcParseError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for url in dict.fromkeys(_origin(url) for url in found.urls):
        entry = entries.hosts.get(urlsplit(url).hostname or "")
        if entry and not any(_origin(below) == url for below, _ in found.credentials):
            found.credentials.append((f"{url}/", basic(entry[0], entry[2] or "")))
