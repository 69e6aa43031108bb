"""A workspace that has only files, with the real file tools."""

from __future__ import annotations

import os
from pathlib import Path

from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.sandbox_runtime import files
from moothall.sandbox_runtime.file_access import TextLimits, ToolFailure
from support.tool_gateway import FakeWorkspace

_LIMITS = TextLimits(5_000_000, 60_000)


class Folder(FakeWorkspace):
    """A test's folder as a workspace, without a sandbox."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a file tool."""
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            output = files.TOOLS[call.tool](root, call.arguments, _LIMITS)
            return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, output)
        except ToolFailure as failed:
            return ToolResult(
                call.request_id,
                call.tool,
                ToolStatus(failed.status),
                failed.output or {},
                str(failed),
            )
        finally:
            os.close(root)
