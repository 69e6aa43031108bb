"""Check at startup that the model servers can be used: one request each. Check for monitoring
whether the model servers answer: one short request each, no retries.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from yarl import URL

from moothall.config import LlmSettings, Models
from moothall.config.models import DEFAULT
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, ModelReplyInvalid, ModelUnavailable
from moothall.llm import server_errors
from moothall.llm.pool import ConnectionPool, open_pool
from moothall.llm.server_errors import (
    Failed,
    Rejected,
    error_message,
    read_models,
    translate_refusal,
)
from moothall.llm.stream import WholeResponseReader
from moothall.telemetry import metrics

# Check for monitoring whether the model servers answer: one short request each, no retries.


_TIMEOUT_SECONDS = 2.5
_MAX_BYTES = 1_000_000
_NO_LIST_STATUSES = frozenset({400, 404, 405, 501})


@dataclass(frozen=True, slots=True)
class ServerCount:
    """The numbers of a model's servers that answer and that are configured, and the fault of the
    first one that does not answer.
    """

    answering: int
    configured: int
    fault: str = ""


async def check_servers(models: Models, base_url: str) -> Mapping[str, ServerCount]:
    """Return the state of each model's servers and update the metric. `base_url` is used for models
    without a URL of their own.
    """
    names, settings = zip(*models.items(), strict=True)
    counts = dict(
        zip(
            names,
            await asyncio.gather(
                *(_check_model(model, model.base_url or base_url) for model in settings)
            ),
            strict=True,
        )
    )
    for name, count in counts.items():
        metrics.MODEL_UP.set(count.answering / count.configured, name)
    return counts


async def _check_model(settings: LlmSettings, base_url: str) -> ServerCount:
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    faults = [
        fault
        for fault in await asyncio.gather(*(_find_fault(settings, url) for url in urls))
        if fault
    ]
    return ServerCount(len(urls) - len(faults), len(urls), faults[0] if faults else "")


async def _find_fault(settings: LlmSettings, base_url: str) -> str:
    """Return the fault of a server, or '' if it answers."""
    try:
        async with open_pool(settings, base_url) as pool:
            reader = WholeResponseReader(str(pool.url), _MAX_BYTES)
            await pool.request(
                "GET",
                pool.url / "models",
                reader,
                until=asyncio.get_running_loop().time() + _TIMEOUT_SECONDS,
            )
    except Failed as failure:
        return f"the model server does not answer: {one_line(failure.reason)}"
    except TimeoutError:
        return f"the model server does not answer within {_TIMEOUT_SECONDS:g} seconds"
    except ModelReplyInvalid as error:
        return f"the model server answers, but {error}"
    if reader.status in _NO_LIST_STATUSES:
        return ""  # a server without a list of models
    return _find_list_fault(reader)


def _find_list_fault(reader: WholeResponseReader) -> str:
    if reader.status != 200:  # noqa: PLR2004 - HTTP OK
        return f"the model server answers with status {reader.status}"
    try:
        read_models(reader.body)
    except ValueError as error:
        return f"the model server answers, but {error}"
    return ""


# Check at startup that the model servers can be used: one request each. Errors name the fix.


_SETTING = "MOOTHALL_LLM__BASE_URL"
_LIST_BYTES = 4_000_000
_LIST_SECONDS = 60.0
_RETRY_SECONDS = 0.5
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
            raise _explain_failure(url, failure) from failure
        except ModelReplyInvalid as error:
            raise ConfigurationError(error.message) from error
    status = response.status
    if status == _OK:
        _check_names(settings, url, response)
    elif status == _TOO_MANY_REQUESTS or (status in _NO_LIST_STATUSES and settings.model):
        # The server runs, possibly without a list of models. The first call shows if it works.
        return
    elif server_errors.is_retried(status):
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
        served_models = read_models(response.body)
    except ValueError as error:
        raise ConfigurationError(
            f"{url}/models returned {one_line(response.content_type)}, not a list of models; set "
            f"{_SETTING} to the root of an OpenAI-compatible API, which usually ends with /v1"
        ) from error
    if settings.model and settings.model not in served_models:
        raise ConfigurationError(
            f"{url} has no model {settings.model!r}; it has: "
            f"{', '.join(served_models)[:_NAMES_SHOWN] or 'none'} (MOOTHALL_LLM__MODEL)"
        )
    if not served_models:
        raise ConfigurationError(f"{url} lists no models; name one with MOOTHALL_LLM__MODEL")


def _explain_failure(url: URL, failure: Failed) -> ConfigurationError | ModelUnavailable:
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
