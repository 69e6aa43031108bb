"""Check for monitoring whether the model servers answer: one short request each, no retries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from moothall.config import LlmSettings, Models
from moothall.domain.text import one_line
from moothall.errors import ModelReplyInvalid
from moothall.llm.pool import open_pool
from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed
from moothall.llm.server_errors import read_models
from moothall.telemetry import metrics

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
