"""Whether the model servers can be used, found out before anything is built on them: one question
each, and a word that mends.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

from yarl import URL

from moothall.config import LlmSettings, Models
from moothall.config.models import DEFAULT
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, ModelReplyInvalid, ModelUnavailable
from moothall.llm import retry
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed, Rejected, translate_refusal
from moothall.llm.server_errors import error_message, read_models

_SETTING = "MOOTHALL_LLM__BASE_URL"
_BYTES = 4_000_000
_LIST_SECONDS = 60.0
_AGAIN_SECONDS = 0.5
_NO_LIST = frozenset({400, 404, 405, 501})
_NAMES_SHOWN = 500
_GOOD, _TOO_MANY = 200, 429


async def reach(
    settings: LlmSettings, base_url: str, report_progress: Callable[[str], None]
) -> None:
    """Return once a server answers; one that does not yet is waited for `llm.wait_seconds`, which
    `report_progress` hears.

    Raises `ConfigurationError` for what no waiting mends (a wrong name, path, key or model at any
    server) and `ModelUnavailable` where none answers.
    """
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    until = time.monotonic() + settings.wait_seconds
    told = False
    while True:
        found = await asyncio.gather(*(_ask(settings, url) for url in urls), return_exceptions=True)
        wrong = [error for error in found if isinstance(error, BaseException)]
        for error in wrong:
            if not isinstance(error, ModelUnavailable):
                raise error
        if len(wrong) < len(urls):
            for error in wrong:
                report_progress(f"another model server stands in: {error}")
            return
        if time.monotonic() >= until:
            raise wrong[0]
        if not told:
            report_progress(
                f"waiting up to {settings.wait_seconds:g} s for the model server: {wrong[0]}"
            )
            told = True
        await asyncio.sleep(_AGAIN_SECONDS)


async def reach_all(models: Models, report_progress: Callable[[str], None]) -> None:
    """Return once the default model or one that stands in for it answers, of those that have
    servers of their own; which others are away is told.

    Raises as `reach` does.
    """
    servers = {name: one for name, one in models.items() if one.base_url}
    away: dict[str, ModelUnavailable] = {}

    async def ask(name: str, settings: LlmSettings) -> None:
        try:
            await reach(settings, settings.base_url or "", report_progress)
        except ModelUnavailable as error:
            away[name] = error

    found = await asyncio.gather(
        *(ask(name, one) for name, one in servers.items()), return_exceptions=True
    )
    if wrong := [error for error in found if error is not None]:
        raise wrong[0]
    if DEFAULT in away and away.keys() >= set(models.chain("")):
        raise away[DEFAULT]
    for name, error in away.items():
        report_progress(f"the model {name} is away: {error}")


async def _ask(settings: LlmSettings, base_url: str) -> None:
    async with open_pool(settings, base_url) as pool:
        url = pool.url
        try:
            async with asyncio.timeout(min(settings.idle_seconds, _LIST_SECONDS)):
                status, body, kind, moved = await _get(pool, url, settings)
                if status in _NO_LIST or (status == _GOOD and not _is_list(body)):
                    await _look_below(pool, settings)
        except TimeoutError as error:
            raise ModelUnavailable(
                f"{url} does not answer in time; is {_SETTING} right, and does the server run?"
            ) from error
        except Failed as failure:
            raise _explain(url, failure) from failure
        except ModelReplyInvalid as error:
            raise ConfigurationError(error.message) from error
    if status == _GOOD:
        _check_names(settings, url, body, kind)
    elif status == _TOO_MANY or (status in _NO_LIST and settings.model):
        # it is there, and takes or refuses the first call; a server that keeps no list is one too
        return
    elif retry.is_retried(status):
        raise ModelUnavailable(
            f"{url} answers HTTP {status} {error_message(body)}".rstrip()
            + "; where it still starts, MOOTHALL_LLM__WAIT_SECONDS says how long to wait for it"
        )
    else:
        said = f"redirects to {one_line(moved)}" if moved else error_message(body)
        raise translate_refusal(Rejected(status, said), str(url), settings.model)


async def _get(
    pool: ConnectionPool, url: URL, settings: LlmSettings
) -> tuple[int, bytes, str, str]:
    """Return status, body, content type and location of its list of models."""
    taken = WholeResponseReader(str(pool.url), _BYTES)
    await pool.ask(
        "GET",
        url / "models",
        taken,
        until=asyncio.get_running_loop().time() + min(settings.idle_seconds, _LIST_SECONDS),
    )
    return taken.status, taken.body, taken.kind, taken.header(b"location")


async def _look_below(pool: ConnectionPool, settings: LlmSettings) -> None:
    """Raise `ConfigurationError` where the list lies under /v1, which is forgotten often."""
    url = pool.url
    if url.name == "v1":
        return
    status, body, _, _ = await _get(pool, url / "v1", settings)
    if status == _GOOD and _is_list(body):
        raise ConfigurationError(
            f"{url} has no list of models, but {url / 'v1'} has: set {_SETTING}={url / 'v1'}"
        )


def _is_list(body: bytes) -> bool:
    try:
        read_models(body)
    except ValueError:
        return False
    return True


def _check_names(settings: LlmSettings, url: URL, body: bytes, kind: str) -> None:
    try:
        listed = read_models(body)
    except ValueError as error:
        raise ConfigurationError(
            f"{url}/models answered with {one_line(kind)}, not with a list of models; {_SETTING} "
            "names an OpenAI-compatible root and usually ends with /v1"
        ) from error
    if settings.model and settings.model not in listed:
        raise ConfigurationError(
            f"{url} has no model {settings.model!r}; it has: "
            f"{', '.join(listed)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
        )
    if not listed:
        raise ConfigurationError(f"{url} lists no models; name one with MOOTHALL_LLM__MODEL")


def _explain(url: URL, failure: Failed) -> ConfigurationError | ModelUnavailable:
    """Return in words why there is no connection, or no answer on it."""
    place, why = f"{url.host}:{url.port}", one_line(failure.reason)
    match failure.__cause__:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{url}: the certificate of {place} is not trusted ({why}); check {_SETTING} or "
                "SSL_CERT_FILE"
            )
        case ssl.SSLError():
            return ConfigurationError(
                f"{url}: {place} does not speak TLS ({why}); say http:// in {_SETTING} where it "
                "needs none"
            )
        case socket.gaierror():
            said = f"the name {url.host} cannot be resolved"
        case ConnectionRefusedError():
            said = f"nobody listens at {place} (connection refused); start the model server"
        case OSError():
            said = f"{place} cannot be reached ({why})"
        case _:
            said = f"{place} does not answer as HTTP ({why})"
    return ModelUnavailable(f"{url}: {said}; check {_SETTING}")
