"""With what git calls a URL: as its operator where an operator registered it, as nobody where a
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
"""Returns `host:port:address` of a URL that may be called: the address that was judged. Raises
`Refused`, `InvalidRequest`.
"""

_PINS_SINCE = (2, 37)
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
# Nothing that one program reads as a host and another does not: what was judged must be what git
# calls.
_PLAIN = re.compile(
    r"(?i:https?)://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[A-Za-z0-9._~/+-]+"
)
_NOBODY = {
    "HOME": "/dev/null",  # where .netrc, .ssh and the credentials of helpers would be
    "XDG_CONFIG_HOME": "/dev/null",
    "SSH_AUTH_SOCK": "",
    "GIT_SSL_CERT": "",
    "GIT_SSL_KEY": "",
}
_SETTINGS = {
    "http.followRedirects": "false",
    "http.proxy": "",  # a proxy would ask for the name again, and reach what it likes
    "http.sslCert": "",
    "http.sslKey": "",
    "http.cookieFile": "",
}


async def refuse_any(url: str) -> str:
    """Judge every URL as one that may not be called."""
    raise Refused(f"{url[:120]!r} may not be called: only registered repositories are fetched here")


async def anonymous_transport(git: GitRunner, cwd: Path, url: str, pin: Pin) -> dict[str, str]:
    """Return git's environment for a URL that no operator registered: over https to the address
    that was judged, with nothing of the operator's and no redirects. Raises `Refused`,
    `InvalidRequest`.
    """
    if not url.lower().startswith(("https://", "http://")):
        raise Refused(
            "a repository that is not registered is fetched over https; over ssh the operator's "
            "keys would be shown to any host: an operator registers it with `moothall repo add`"
        )
    if not _PLAIN.fullmatch(url):
        raise InvalidRequest(
            f"{url[:120]!r} is not a plain URL such as https://host.example/team/tools.git"
        )
    version = _VERSION.match(await git.run("version", cwd=cwd))
    if version is None or (int(version[1]), int(version[2])) < _PINS_SINCE:
        raise Refused(
            "a repository that is not registered needs git 2.37 or newer, which keeps to the "
            "address that was judged"
        )
    settings = {**_SETTINGS, "http.curloptResolve": await pin(url)}
    env = {
        **_NOBODY,
        "GIT_ALLOW_PROTOCOL": url.partition(":")[0].lower(),
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


@contextmanager
def hide_reason(url: str) -> Iterator[None]:
    """Say of a URL that a stranger named only that it failed: closed, silent, not there or no
    repository is nothing for them.
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
    """Return git's environment for a URL that an operator registered: allowed protocols, and the
    credential that the record names.

    `secrets` are the environment variables that records may name. A secret stays out of every
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
