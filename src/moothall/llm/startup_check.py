"""Check at startup that the model servers can be used: one request each. Errors name the fix."""

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
_LIST_BYTES = 4_000_000
_LIST_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_NO_LIST_STATUSES = frozenset({400, 404, 405, 501})
_NAMES_SHOWN = 500
_OK, _TOO_MANY_REQUESTS = 200, 429


async def reach(
    settings: LlmSettings, base_url: str, report_progress: Callable[[str], None]
) -> None:
    """Return once one of a model's servers answers. Wait up to `llm.wait_seconds` for it, which is
    reported with `report_progress`.

    Raises `ConfigurationError` for errors that waiting cannot fix (a wrong name, path, key or model
    at any server), and `ModelUnavailable` if no server answers.
    """
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    until = time.monotonic() + settings.wait_seconds
    reported = False
    while True:
        results = await asyncio.gather(
            *(_check_server(settings, url) for url in urls), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, ModelUnavailable):
                raise error
        if len(errors) < len(urls):
            for error in errors:
                report_progress(f"using another model server: {error}")
            return
        if time.monotonic() >= until:
            raise errors[0]
        if not reported:
            report_progress(
                f"waiting up to {settings.wait_seconds:g} s for the model server: {errors[0]}"
            )
            reported = True
        await asyncio.sleep(_RETRY_SECONDS)


async def reach_all(models: Models, report_progress: Callable[[str], None]) -> None:
    """Return once the default model or one of its fallbacks answers. Check all models that have a
    URL of their own, and report the unavailable ones.

    Raises the errors of `reach`.
    """
    settings_by_name = {name: settings for name, settings in models.items() if settings.base_url}
    unavailable: dict[str, ModelUnavailable] = {}

    async def check(name: str, settings: LlmSettings) -> None:
        try:
            await reach(settings, settings.base_url or "", report_progress)
        except ModelUnavailable as error:
            unavailable[name] = error

    results = await asyncio.gather(
        *(check(name, settings) for name, settings in settings_by_name.items()),
        return_exceptions=True,
    )
    if errors := [error for error in results if error is not None]:
        raise errors[0]
    if DEFAULT in unavailable and unavailable.keys() >= set(models.chain("")):
        raise unavailable[DEFAULT]
    for name, error in unavailable.items():
        report_progress(f"the model {name} is unavailable: {error}")


async def _check_server(settings: LlmSettings, base_url: str) -> None:
    async with open_pool(settings, base_url) as pool:
        url = pool.url
        try:
            async with asyncio.timeout(min(settings.idle_seconds, _LIST_SECONDS)):
                response = await _get_models(pool, url, settings)
                has_list = response.status == _OK and _is_list(response.body)
                if not has_list and response.status in {_OK, *_NO_LIST_STATUSES}:
                    await _check_v1(pool, settings)
        except TimeoutError as error:
            raise ModelUnavailable(
                f"{url} does not answer in time; check {_SETTING} and that the server is running"
            ) from error
        except Failed as failure:
            raise _explain(url, failure) from failure
        except ModelReplyInvalid as error:
            raise ConfigurationError(error.message) from error
    status = response.status
    if status == _OK:
        _check_names(settings, url, response)
    elif status == _TOO_MANY_REQUESTS or (status in _NO_LIST_STATUSES and settings.model):
        # The server runs, possibly without a list of models. The first call shows if it works.
        return
    elif retry.is_retried(status):
        raise ModelUnavailable(
            f"{url} answers HTTP {status} {error_message(response.body)}".rstrip()
            + "; if it is still starting, set MOOTHALL_LLM__WAIT_SECONDS to wait for it"
        )
    else:
        location = response.header(b"location")
        message = f"redirects to {one_line(location)}" if location else error_message(response.body)
        raise translate_refusal(Rejected(status, message), str(url), settings.model)


async def _get_models(pool: ConnectionPool, url: URL, settings: LlmSettings) -> WholeResponseReader:
    """Return the response to a request for the list of models."""
    reader = WholeResponseReader(str(pool.url), _LIST_BYTES)
    await pool.request(
        "GET",
        url / "models",
        reader,
        until=asyncio.get_running_loop().time() + min(settings.idle_seconds, _LIST_SECONDS),
    )
    return reader


async def _check_v1(pool: ConnectionPool, settings: LlmSettings) -> None:
    """Raise `ConfigurationError` if the list is under /v1, which is often forgotten."""
    url = pool.url
    if url.name == "v1":
        return
    response = await _get_models(pool, url / "v1", settings)
    if response.status == _OK and _is_list(response.body):
        raise ConfigurationError(
            f"{url} has no list of models, but {url / 'v1'} has: set {_SETTING}={url / 'v1'}"
        )


def _is_list(body: bytes) -> bool:
    try:
        read_models(body)
    except ValueError:
        return False
    return True


def _check_names(settings: LlmSettings, url: URL, response: WholeResponseReader) -> None:
    try:
        listed = read_models(response.body)
    except ValueError as error:
        raise ConfigurationError(
            f"{url}/models returned {one_line(response.content_type)}, not a list of models; set "
            f"{_SETTING} to the root of an OpenAI-compatible API, which usually ends with /v1"
        ) from error
    if settings.model and settings.model not in listed:
        raise ConfigurationError(
            f"{url} has no model {settings.model!r}; it has: "
            f"{', '.join(listed)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
        )
    if not listed:
        raise ConfigurationError(f"{url} lists no models; name one with MOOTHALL_LLM__MODEL")


def _explain(url: URL, failure: Failed) -> ConfigurationError | ModelUnavailable:
    """Return an error that explains why the server cannot be reached or does not answer."""
    address, reason = f"{url.host}:{url.port}", one_line(failure.reason)
    match failure.__cause__:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{url}: the certificate of {address} is not trusted ({reason}); check {_SETTING} "
                "or SSL_CERT_FILE"
            )
        case ssl.SSLError():
            return ConfigurationError(
                f"{url}: {address} does not speak TLS ({reason}); use http:// in {_SETTING} if the "
                "server has no TLS"
            )
        case socket.gaierror():
            explanation = f"the name {url.host} cannot be resolved"
        case ConnectionRefusedError():
            explanation = f"connection refused at {address}; start the model server"
        case OSError():
            explanation = f"{address} cannot be reached ({reason})"
        case _:
            explanation = f"{address} does not answer with HTTP ({reason})"
    return ModelUnavailable(f"{url}: {explanation}; check {_SETTING}")
