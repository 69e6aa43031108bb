"""Engines that evaluate Rego: an OPA server over its data API, and the Regorus interpreter in this
process.

Nothing is allowed if a server gives no clear answer in time. The interpreter takes about twenty
microseconds a decision and therefore runs on the event loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regorus

from moothall.concurrency import read_body
from moothall.errors import ConfigurationError, PolicyUnavailable

if TYPE_CHECKING:  # 8 MB that Rego does not need
    import aiohttp

RULE = "data.moothall.tools.decision"
PATH = "v1/data/moothall/tools/decision"
_ANSWER_BYTES = 65_536


class Rego:
    """A policy: all `*.rego` files of a folder. Belongs to the thread that creates it."""

    def __init__(self, folder: Path) -> None:
        """Load the files. Raises `ConfigurationError` if a file is not Rego, or if none defines
        `moothall.tools.decision`.
        """
        files = sorted(folder.glob("*.rego"))
        if not files:
            raise ConfigurationError(
                f"there is no policy in {folder}: put *.rego files there, or set guard.policy to "
                "off"
            )
        self._engine: regorus.Engine | None = regorus.Engine()
        for file in files:
            try:
                self._engine.add_policy(file.name, file.read_text(encoding="utf-8"))
            except (OSError, RuntimeError) as error:
                self.close()
                raise ConfigurationError(
                    f"the policy {file} cannot be used: {_error_message(error)}"
                ) from error
        try:
            self._evaluate({})
        except RuntimeError as error:
            self.close()
            raise ConfigurationError(
                f"the policies in {folder} define no decision: they need a package moothall.tools "
                f"with the rule decision ({_error_message(error)})"
            ) from error

    async def decide(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the decision. Raises `PolicyUnavailable` if there is no decision."""
        try:
            answer = self._evaluate(question)
        except RuntimeError as error:
            raise PolicyUnavailable(_error_message(error)) from error
        if not isinstance(answer, dict):
            raise PolicyUnavailable("no rule defines a decision")
        return answer

    def close(self) -> None:
        """Drop the engine in the thread that created it; it reports an error if another thread
        drops it.
        """
        self._engine = None

    def _evaluate(self, question: Mapping[str, Any]) -> object:
        if self._engine is None:
            raise RuntimeError("it is closed")
        self._engine.set_input(dict(question))
        return self._engine.eval_rule(RULE)


def _error_message(error: Exception) -> str:
    """Return the message of an error without the stack of another language."""
    message = str(error).partition("Stack backtrace")[0]
    return " ".join(message.split())[:300]


@dataclass(frozen=True, slots=True)
class Opa:
    """A client of an OPA server, created by `opa`. `seconds` is the time limit of one request."""

    url: str
    session: aiohttp.ClientSession
    seconds: float

    async def decide(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the decision. Raises `PolicyUnavailable`."""
        import aiohttp

        try:
            async with self.session.post(
                self.url,
                json={"input": question},
                allow_redirects=False,  # a redirect would lead to another server's policy
                timeout=aiohttp.ClientTimeout(total=self.seconds),
            ) as response:
                raw = await read_body(response.content.readexactly, _ANSWER_BYTES)
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
                f"the policy server cannot be reached: {type(error).__name__}"
            ) from error
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise PolicyUnavailable("the policy server did not answer with JSON") from error
        decision = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(decision, dict):
            raise PolicyUnavailable("the policy server has no decision of moothall.tools")
        return decision


@asynccontextmanager
async def opa(url: str, *, seconds: float, token: str = "") -> AsyncIterator[Opa]:
    """Yield a client of the server at `url`, which has answered once. Raises `ConfigurationError`
    if it does not answer.
    """
    import aiohttp

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
