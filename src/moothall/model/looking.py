"""Whether a model server answers, for whoever watches the house: one short question, no retries."""

from __future__ import annotations

import asyncio

import aiohttp
from yarl import URL

from moothall.config import Llm
from moothall.errors import ModelUnavailable
from moothall.model.said import plain, read_models

_SECONDS = 2.5
_BYTES = 1_000_000
_NO_LIST = frozenset({404, 405, 501})


async def look(settings: Llm, base_url: str) -> tuple[int, int, str]:
    """Return how many of the servers answer, how many there are, and what is wrong with the first that does not.

    Raises `ModelUnavailable` where none answers.
    """
    urls = tuple(dict.fromkeys((base_url, *settings.replicas)))
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session:
        wrong = [said for said in await asyncio.gather(*(_wrong(session, url, key) for url in urls)) if said]
    if len(wrong) == len(urls):
        raise ModelUnavailable(wrong[0])
    return len(urls) - len(wrong), len(urls), wrong[0] if wrong else ""


async def _wrong(session: aiohttp.ClientSession, url: str, key: str) -> str:
    """Return what is wrong with a server, nothing where it answers. A key in the URL's user part, as the local model's, is sent as the
    model's client sends it.
    """
    server = URL(url.rstrip("/"))
    secret = key or server.user
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        async with session.get(server.with_user(None) / "models", headers=headers, allow_redirects=False) as response:
            if response.status in _NO_LIST:
                return ""  # a server that keeps no list
            if response.status != 200:  # noqa: PLR2004 - HTTP's word for good
                return f"the model server answers with status {response.status}"
            read_models(await response.content.read(_BYTES))
    except (aiohttp.ClientError, OSError) as error:
        return f"the model server does not answer: {plain(str(error)) or type(error).__name__}"
    except TimeoutError:
        return f"the model server does not answer within {_SECONDS:g} seconds"
    except ValueError as error:
        return f"the model server answers, but {error}"
    return ""
