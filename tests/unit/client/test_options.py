"""Options of the client, which are keyword arguments of a typed dictionary."""

from __future__ import annotations

from typing import Any

import pytest

from moothall import AsyncClient
from moothall.client.types import run_evaluation
from moothall.config import Settings


async def test_an_unknown_option_of_a_task_is_an_error() -> None:
    misspelt: dict[str, Any] = {"agnets": 3}
    with pytest.raises(TypeError, match="unexpected option 'agnets'; there are adaptive, agents,"):
        await AsyncClient().submit("Fix the failing test", **misspelt)
    with pytest.raises(TypeError, match="unexpected option 'agnets'"):
        await AsyncClient().deliberate("Fix the failing test", **misspelt)


async def test_an_unknown_option_of_an_evaluation_is_an_error() -> None:
    misspelt: Any = {"task": 3}
    with pytest.raises(TypeError, match="unexpected option 'task'; there are commits,"):
        await run_evaluation(Settings(), "shop", misspelt)
