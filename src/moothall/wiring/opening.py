"""A way into the page of the process that serves a data directory, for a browser of this machine."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.errors import ConfigurationError
from moothall.services.identity import read_tokens
from moothall.wiring.bus import Tell, hold_or_find

_SECONDS = 10.0


async def page_link(settings: Settings, tell: Tell) -> str | None:
    """Return a link that signs a browser in once; None where nobody serves. Raises `ConfigurationError` where the process that works on the
    data directory shows no page.
    """
    async with AsyncExitStack() as stack:
        if (address := await hold_or_find(settings.data_dir, tell, stack)) is None:
            return None
    token = next((token for token, who in read_tokens(settings.grpc, settings.data_dir).items() if who == LOCAL), "")
    if not address.page or not token:
        raise ConfigurationError(
            f"process {address.pid} works on {settings.data_dir} and shows no page that could be opened here: it is a single command, or serves "
            "without one, over TLS or to holders of other tokens. Wait for its end, or set MOOTHALL_DATA_DIR"
        )
    return address.page + await asyncio.to_thread(_path, address.page, token)


def _path(page: str, token: str) -> str:
    at = urlsplit(page)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=_SECONDS)
    try:
        connection.request("POST", "/api/v1/sign-in-links", headers={"Authorization": f"Bearer {token}"})
        return str(json.loads(connection.getresponse().read())["path"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"the page at {page} gave no link ({error}); is another server there?") from error
    finally:
        connection.close()
