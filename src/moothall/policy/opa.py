"""An OPA server, over its data API. What is no clear answer in time is none, and then nothing is
allowed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from moothall.concurrency import whole_body
from moothall.errors import ConfigurationError, PolicyUnavailable

PATH = "v1/data/moothall/tools/decision"
_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Opa:
    """Has an OPA server decide. Make one with `opa`. `seconds` bounds one question."""

    url: str
    session: aiohttp.ClientSession
    seconds: float

    async def decide(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the decision. Raises `PolicyUnavailable`."""
        try:
            async with self.session.post(
                self.url,
                json={"input": asked},
                allow_redirects=False,  # a policy does not come from elsewhere
                timeout=aiohttp.ClientTimeout(total=self.seconds),
            ) as response:
                raw = await whole_body(response.content.readexactly, _ANSWER_BYTES)
                if raw is None:
                    raise PolicyUnavailable(
                        f"the policy server answered with more than {_ANSWER_BYTES} bytes"
                    )
                if response.status != 200:  # noqa: PLR2004 - OK
                    raise PolicyUnavailable(
                        f"the policy server answered {response.status} with {len(raw)} bytes"
                    )
        except TimeoutError as error:
            raise PolicyUnavailable(
                f"the policy server gave no answer within {self.seconds:g} seconds"
            ) from error
        except aiohttp.ClientError as error:
            raise PolicyUnavailable(
                f"the policy server cannot be asked: {type(error).__name__}"
            ) from error
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise PolicyUnavailable("the policy server answered with no JSON") from error
        decision = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(decision, dict):
            raise PolicyUnavailable("the policy server knows no decision of moothall.tools")
        return decision


@asynccontextmanager
async def opa(url: str, *, seconds: float, token: str = "") -> AsyncIterator[Opa]:
    """Yield the server at `url`, that has answered once. Raises `ConfigurationError` where it does
    not.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers, trust_env=False) as session:
        server = Opa(f"{url.rstrip('/')}/{PATH}", session, seconds)
        try:
            await server.decide({})
        except PolicyUnavailable as error:
            raise ConfigurationError(
                f"guard.policy_url {url}: {error.message}; start it with `opa run --server --addr "
                "127.0.0.1:8181 FOLDER`, where FOLDER has the *.rego with the package "
                "moothall.tools"
            ) from error
        yield server
