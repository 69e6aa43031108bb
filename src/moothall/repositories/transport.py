"""Git's environment for a URL: with the operator's credential if it is registered, anonymous if a
caller or a repository named it.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from moothall.errors import ConfigurationError, InvalidRequest, Refused, RepositoryError
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner
from moothall.repositories.registry import Registered
from moothall.telemetry import get_logger

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
    raise Refused(f"{url[:120]!r} may not be called: only registered repositories are fetched here")


async def anonymous_transport(git: GitRunner, cwd: Path, url: str, pin: Pin) -> dict[str, str]:
    """Return git's environment for a URL that is not registered: over HTTPS to the address that was
    checked, without credentials and redirects. Raises `Refused`, `InvalidRequest`.
    """
    if not url.lower().startswith(("https://", "http://")):
        raise Refused(
            "a repository that is not registered is fetched over https; over ssh the operator's "
            "keys would be shown to any host: an operator registers it with `moothall repo add`"
        )
    if not _PLAIN_URL.fullmatch(url):
        raise InvalidRequest(
            f"{url[:120]!r} is not a plain URL such as https://host.example/team/tools.git"
        )
    version = _VERSION.match(await git.run("version", cwd=cwd))
    if version is None or (int(version[1]), int(version[2])) < _PINNING_GIT_VERSION:
        raise Refused(
            "a repository that is not registered needs git 2.37 or newer, which keeps to the "
            "address that was judged"
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
            f"cannot fetch the repository {url[:200]!r}; where it needs a credential, an operator "
            "registers it with `moothall repo add`"
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
            f"repository {entry.id}: over ssh the credential is a key: file:/path/of/the/key"
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
