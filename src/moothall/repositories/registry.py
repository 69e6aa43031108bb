"""The records of repositories: one JSON file each, written atomically. Git's environment for a
URL: with the operator's credential if it is registered, anonymous if a caller or a repository
named it.
"""

from __future__ import annotations

import base64
import re
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from moothall.domain.codec import describe_errors
from moothall.domain.ids import check_id, digest
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRequest,
    NotFound,
    Refused,
    RepositoryError,
)
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner
from moothall.repositories.profile import Commands
from moothall.telemetry import get_logger

# The records of repositories: one JSON file each, written atomically. Secrets are named, never
# stored.


PushPolicy = Literal["local-branch", "push", "none"]
Approval = Literal["leave", "push", "merge"]
_CREDENTIAL = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\0\n]+")


def _credential(value: str) -> str:
    if value and not _CREDENTIAL.fullmatch(value):
        raise ValueError(
            "a credential is named as env:VARIABLE or file:/absolute/path; the secret itself is "
            "not stored"
        )
    return value


class Registered(BaseModel):
    """A repository of a tenant.

    origin: the absolute path of a local repository, or a URL.
    push: the delivery that is allowed: a branch in a local repository, a push to a URL, or none.
    on_approval: what happens to the branch of an approved story: it is left, pushed regardless of
    `push`, or merged into the branch `base`.
    listed: false for a repository that was used without registration. Commits that were pinned
    then can still be used.
    of: the record of which this one is a variant with commands from a caller's file. A variant is
    found by its id only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, AfterValidator(lambda value: check_id(value, "the repository's id"))]
    origin: str
    tenant: Annotated[str, AfterValidator(lambda value: check_id(value, "the tenant"))] = "local"
    credential: Annotated[str, AfterValidator(_credential)] = ""
    push: PushPolicy = "none"
    on_approval: Approval = "leave"
    base: str = ""
    commands: Commands = Commands()
    listed: bool = True
    of: str = ""

    @property
    def clone(self) -> str:
        """The id under which its clone is stored."""
        return self.of or self.id

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return self.origin.startswith("/")


def repository_id(origin: str, tenant: str) -> str:
    """Return the id of a tenant's repository that was registered without one: readable, and always
    the same.
    """
    name = re.split(r"[/:]", origin.rstrip("/").removesuffix(".git"))[-1]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "repository"
    return f"{slug}-{digest(tenant, origin)[:12]}"


def make_registered(origin: str, *, tenant: str = "local", **fields: Any) -> Registered:
    """Return a checked record. Fields that are missing, empty or None get defaults: an id derived
    from the origin, and a push policy of branches for local repositories and none for URLs.
    """
    defaults = {
        "id": repository_id(origin, tenant),
        "push": "local-branch" if origin.startswith("/") else "none",
    }
    fields = {name: value for name, value in fields.items() if value is not None and value != ""}
    try:
        return Registered(**{**defaults, **fields, "origin": origin, "tenant": tenant})
    except ValidationError as error:
        raise InvalidRequest(f"the repository's {describe_errors(error)}") from error


class Registry:
    """The records in `folder`. The methods block, but files are small."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, entry: Registered) -> None:
        """Store a record, replacing an older one of the same repository. Raises `AlreadyExists` for
        a taken id.
        """
        path = self._path(entry.id)
        if path.exists():
            existing = self._read_record(path)
            if (existing.origin, existing.tenant) != (entry.origin, entry.tenant):
                raise AlreadyExists(
                    f"the id {entry.id!r} is taken by another repository; choose another one"
                )
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self._folder, prefix=".", delete=False, encoding="utf-8"
        ) as file:
            file.write(entry.model_dump_json(indent=2))
        Path(file.name).replace(path)

    def get(self, repository: str, tenant: str) -> Registered:
        """Return a tenant's record. Raises `NotFound`, also for a record of another tenant."""
        entry = self.find(repository)
        if entry.tenant != tenant:
            raise NotFound(f"no repository {repository[:80]!r}")
        return entry

    def find(self, repository: str) -> Registered:
        """Return the record of an id that the server itself gave out. Raises `NotFound`."""
        path = self._path(repository)
        if not path.exists():
            raise NotFound(f"no repository {repository[:80]!r}")
        return self._read_record(path)

    def of_origin(self, origin: str, tenant: str) -> Registered | None:
        """Return the tenant's record of a path or URL, preferably a listed one."""
        matches = [
            entry
            for entry in self.all()
            if (entry.origin, entry.tenant, entry.of) == (origin, tenant, "")
        ]
        listed = (entry for entry in matches if entry.listed)
        return next(listed, matches[0] if matches else None)

    def list(self, tenant: str) -> tuple[Registered, ...]:
        """Return the repositories that the tenant registered, by id."""
        return tuple(
            entry
            for entry in self.all()
            if entry.tenant == tenant and entry.listed and not entry.of
        )

    def remove(self, repository: str) -> None:
        """Delete a record. Raises `NotFound`."""
        self.find(repository)
        self._path(repository).unlink(missing_ok=True)

    def all(self) -> tuple[Registered, ...]:
        """Return every record, of all tenants."""
        return tuple(
            self._read_record(path) for path in sorted(self._folder.glob("[a-z0-9]*.json"))
        )

    def _path(self, repository: str) -> Path:
        return self._folder / f"{check_id(repository, 'the repository')}.json"

    @staticmethod
    def _read_record(path: Path) -> Registered:
        try:
            return Registered.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RepositoryError(
                f"the repository record {path} cannot be read; remove it and add the repository "
                "again"
            ) from error


def open_registry(data_dir: Path) -> Registry:
    """Return the registry of a data directory."""
    return Registry(data_dir / "repositories")


# Git's environment for a URL: with the operator's credential if it is registered, anonymous if a
# caller or a repository named it.


log = get_logger(__name__)

Pin = Callable[[str], Awaitable[str]]
"""Checks a URL and returns `host:port:address` with the address that was checked. Raises `Refused`,
`InvalidRequest`.
"""

_PINNING_GIT_VERSION = (2, 37)
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
# URLs that all programs parse alike, so that git calls the host that was checked.
_PLAIN_URL = re.compile(
    r"(?i:https?)://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[A-Za-z0-9._~/+-]+"
)
_ANONYMOUS = {
    "HOME": "/dev/null",  # no .netrc, no .ssh and no credentials of helpers
    "XDG_CONFIG_HOME": "/dev/null",
    "SSH_AUTH_SOCK": "",
    "GIT_SSL_CERT": "",
    "GIT_SSL_KEY": "",
}
_ANONYMOUS_CONFIG = {
    "http.followRedirects": "false",
    "http.proxy": "",  # a proxy would resolve the name again
    "http.sslCert": "",
    "http.sslKey": "",
    "http.cookieFile": "",
}


async def refuse_any(url: str) -> str:
    """Refuse every URL."""
    raise Refused(f"{url[:120]!r} cannot be fetched: only registered repositories are allowed here")


async def anonymous_transport(git: GitRunner, cwd: Path, url: str, pin: Pin) -> dict[str, str]:
    """Return git's environment for a URL that is not registered: over HTTPS to the address that was
    checked, without credentials and redirects. Raises `Refused`, `InvalidRequest`.
    """
    if not url.lower().startswith(("https://", "http://")):
        raise Refused(
            "a repository that is not registered is fetched only over https, since ssh would offer "
            "the operator's keys to any host; an operator can register it: `moothall repo add`"
        )
    if not _PLAIN_URL.fullmatch(url):
        raise InvalidRequest(
            f"{url[:120]!r} is not a plain URL such as https://host.example/team/tools.git"
        )
    version = _VERSION.match(await git.run("version", cwd=cwd))
    if version is None or (int(version[1]), int(version[2])) < _PINNING_GIT_VERSION:
        raise Refused(
            "a repository that is not registered needs git 2.37 or newer, which can be limited to "
            "the checked address"
        )
    settings = {**_ANONYMOUS_CONFIG, "http.curloptResolve": await pin(url)}
    env = {
        **_ANONYMOUS,
        "GIT_ALLOW_PROTOCOL": url.partition(":")[0].lower(),
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


@contextmanager
def hide_reason(url: str) -> Iterator[None]:
    """Replace the reason of a failed fetch from an unregistered URL by a general message: callers
    must not probe the network with it.
    """
    try:
        yield
    except FetchTooLarge:
        raise
    except RepositoryError as error:
        log.info(
            "a repository that is not registered cannot be fetched",
            url=url[:200],
            reason=error.message,
        )
        raise RepositoryError(
            f"cannot fetch the repository {url[:200]!r}; if it needs a credential, an operator can "
            "register it with `moothall repo add`"
        ) from None


def registered_transport(
    entry: Registered, schemes: Sequence[str], secrets: Mapping[str, str]
) -> dict[str, str]:
    """Return git's environment for a registered URL: the allowed protocols, and the credential that
    the record names.

    `secrets` are the environment variables that records may name. The credential is never part of a
    command line.
    """
    env = {"GIT_ALLOW_PROTOCOL": ":".join(scheme for scheme in schemes if scheme != "file")}
    kind, _, name = entry.credential.partition(":")
    if not kind:
        return env
    if entry.origin.lower().startswith(("https://", "http://")):
        parts = urlsplit(entry.origin)
        token = _secret(kind, name, secrets)
        pair = token if ":" in token else f"x-access-token:{token}"
        env |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
            "GIT_CONFIG_VALUE_0": (
                f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
            ),
        }
    elif kind == "file":
        env["GIT_SSH_COMMAND"] = f"ssh -oBatchMode=yes -oIdentitiesOnly=yes -i {shlex.quote(name)}"
    else:
        raise ConfigurationError(
            f"repository {entry.id}: for ssh, the credential must be a key: file:/path/of/the/key"
        )
    return env


def _secret(kind: str, name: str, secrets: Mapping[str, str]) -> str:
    if kind == "env":
        value = secrets.get(name, "")
    else:
        try:
            value = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"the credential file {name!r} cannot be read: {error.strerror}"
            ) from error
    if not value.strip():
        raise ConfigurationError(f"the credential {kind}:{name} is empty or not set")
    return value.strip()
