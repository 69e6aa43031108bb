"""Rego in this process, by the Regorus interpreter. Twenty microseconds a decision: it runs on the
loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import regorus

from moothall.errors import ConfigurationError, PolicyUnavailable

RULE = "data.moothall.tools.decision"


class Rego:
    """Decides by every `*.rego` of a folder. Belongs to the thread that makes it."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigurationError` where a file is no Rego, or none of them says
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
                    f"the policy {file} cannot be used: {_first(error)}"
                ) from error
        try:
            self._ask({})
        except RuntimeError as error:
            self.close()
            raise ConfigurationError(
                f"the policies in {folder} say no decision: they need a package moothall.tools "
                f"with the rule decision ({_first(error)})"
            ) from error

    async def decide(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the decision. Raises `PolicyUnavailable` where there is none."""
        try:
            answer = self._ask(asked)
        except RuntimeError as error:
            raise PolicyUnavailable(_first(error)) from error
        if not isinstance(answer, dict):
            raise PolicyUnavailable("no rule says a decision")
        return answer

    def close(self) -> None:
        """Let the engine go, in the thread that made it: dropped by a garbage collector elsewhere,
        it complains.
        """
        self._engine = None

    def _ask(self, asked: Mapping[str, Any]) -> object:
        if self._engine is None:
            raise RuntimeError("it is closed")
        self._engine.set_input(dict(asked))
        return self._engine.eval_rule(RULE)


def _first(error: Exception) -> str:
    """Its words without the stack of another language."""
    words = str(error).partition("Stack backtrace")[0]
    return " ".join(words.split())[:300]
