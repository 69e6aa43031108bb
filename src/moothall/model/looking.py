"""Whether a model server answers, for whoever watches the house: one short question, no retries."""

from __future__ import annotations

import asyncio

from moothall.config import Llm
from moothall.errors import ModelReplyInvalid, ModelUnavailable
from moothall.model.pool import open_pool
from moothall.model.retry import Failed
from moothall.model.said import plain, read_models
from moothall.model.takers import WholeTaker

_SECONDS = 2.5
_BYTES = 1_000_000
_NO_LIST = frozenset({404, 405, 501})


async def look(settings: Llm, base_url: str) -> tuple[int, int, str]:
    """Return how many of the servers answer, how many there are, and what is wrong with the first that does not.

    Raises `ModelUnavailable` where none answers.
    """
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    wrong = [said for said in await asyncio.gather(*(_wrong(settings, url) for url in urls)) if said]
    if len(wrong) == len(urls):
        raise ModelUnavailable(wrong[0])
    return len(urls) - len(wrong), len(urls), wrong[0] if wrong else ""


async def _wrong(settings: Llm, base_url: str) -> str:
    """Return what is wrong with a server, nothing where it answers."""
    try:
        async with open_pool(settings, base_url) as pool:
            taken = WholeTaker(str(pool.url), _BYTES)
            await pool.ask("GET", pool.url / "models", taken, until=asyncio.get_running_loop().time() + _SECONDS)
    except Failed as failure:
        return f"the model server does not answer: {plain(failure.reason)}"
    except TimeoutError:
        return f"the model server does not answer within {_SECONDS:g} seconds"
    except ModelReplyInvalid as error:
        return f"the model server answers, but {error}"
    if taken.status in _NO_LIST:
        return ""  # a server that keeps no list
    return _wrong_list(taken)


def _wrong_list(taken: WholeTaker) -> str:
    if taken.status != 200:  # noqa: PLR2004 - HTTP's word for good
        return f"the model server answers with status {taken.status}"
    try:
        read_models(taken.body)
    except ValueError as error:
        return f"the model server answers, but {error}"
    return ""
