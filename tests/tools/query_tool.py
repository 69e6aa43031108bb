"""Calls of a database tool as the gateway makes them."""

from __future__ import annotations

import json
from typing import Any

from moothall.domain.tool import ToolCall, ToolResult
from moothall.toolkits.db import DbLimits, DbSettings
from moothall.toolkits.db.toolkit import SPECS, DatabaseTools
from support.tool_gateway import FakeWorkspace, in_seconds

_ARGUMENTS = {spec.name: spec.arguments for spec in SPECS}
PASSWORD = "r-secret-42"


def database_tools(*, seconds: float = 60.0, rows: int = 500, **settings: Any) -> DatabaseTools:
    """Return the tools of an operator with these settings. A query may take long, for busy
    machines.
    """
    return DatabaseTools(DbSettings(**settings), DbLimits(seconds=seconds, rows=rows))


async def ask(
    tool: str, tools: DatabaseTools, tenant: str = "local", **arguments: Any
) -> ToolResult:
    """Call the tool as the gateway does: arguments checked, defaults filled in."""
    checked = _ARGUMENTS[tool].model_validate(arguments).model_dump()
    result = await tools.call(
        ToolCall("request-1", tool, checked, in_seconds(60)), FakeWorkspace(), tenant
    )
    json.dumps(dict(result.output), allow_nan=False)
    assert PASSWORD not in str(result)
    return result
