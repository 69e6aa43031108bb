"""Whether the model servers answer, for whoever watches the server: one short question each, no
retries.
"""

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

_SECONDS = 2.5
_BYTES = 1_000_000
_NO_LIST = frozenset({400, 404, 405, 501})


@dataclass(frozen=True, slots=True)
class ServerCount:
    """How many of a model's servers answer, how many there are, and what is wrong with the first
    that does not.
    """

    answering: int
    there: int
    wrong: str = ""


async def look(models: Models, base_url: str) -> Mapping[str, ServerCount]:
    """Return how the servers of each model stand, and count it; `base_url` is the server of those
    that name none.
    """
    names, settings = zip(*models.items(), strict=True)
    seen = dict(
        zip(
            names,
            await asyncio.gather(*(_look(one, one.base_url or base_url) for one in settings)),
            strict=True,
        )
    )
    for name, one in seen.items():
        metrics.MODEL_UP.set(one.answering / one.there, name)
    return seen


async def _look(settings: LlmSettings, base_url: str) -> ServerCount:
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    wrong = [
        said for said in await asyncio.gather(*(_wrong(settings, url) for url in urls)) if said
    ]
    return ServerCount(len(urls) - len(wrong), len(urls), wrong[0] if wrong else "")


async def _wrong(settings: LlmSettings, base_url: str) -> str:
    """Return what is wrong with a server, nothing where it answers."""
    try:
        async with open_pool(settings, base_url) as pool:
            taken = WholeResponseReader(str(pool.url), _BYTES)
            await pool.ask(
                "GET",
                pool.url / "models",
                taken,
                until=asyncio.get_running_loop().time() + _SECONDS,
            )
    except Failed as failure:
        return f"the model server does not answer: {one_line(failure.reason)}"
    except TimeoutError:
        return f"the model server does not answer within {_SECONDS:g} seconds"
    except ModelReplyInvalid as error:
        return f"the model server answers, but {error}"
    if taken.status in _NO_LIST:
        return ""  # a server that keeps no list
    return _wrong_list(taken)


def _wrong_list(taken: WholeResponseReader) -> str:
    if taken.status != 200:  # noqa: PLR2004 - HTTP's word for good
        return f"the model server answers with status {taken.status}"
    try:
        read_models(taken.body)
    except ValueError as error:
        return f"the model server answers, but {error}"
    return ""
