"""What a sandbox said and what ran in it, kept beside the data of the workspace after it is
closed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moothall.domain.codec import mapping_of
from moothall.domain.text import one_line

KEPT = 1000
"""Logs of closed workspaces, the newest; older ones go at the next start."""

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_SHOWN = 200


def folder_of(data_dir: Path) -> Path:
    """Return where the logs of closed workspaces lie."""
    return data_dir / "logs" / "workspaces"


def line(op: str, request: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return one line: what ran, how it ended, what it used. Programs only: arguments may hold a
    model's code, or secrets.

    The result is hostile.
    """
    used = mapping_of(result.get("usage"))
    argv = request.get("argv") or ("?",)
    program = next((part for part in argv if part != "env" and "=" not in str(part)), "?")
    said = {
        "program": str(program),
        "status": result.get("status"),
        "exit_code": result.get("exit_code"),
        "ms": result.get("duration_ms"),
        "cpu_ms": used.get("cpu_ms"),
        "max_rss_bytes": used.get("max_rss_bytes"),
        "output_bytes": result.get("output_bytes"),
    }
    words = " ".join(
        f"{name}={one_line(str(value), _SHOWN)}"
        for name, value in said.items()
        if isinstance(value, str | int | float)
    )
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {op} {words}\n"


def keep(log: Path, data_dir: Path, name: str) -> None:
    """Move the log of a workspace that is being closed to where logs are kept. One that cannot be
    moved goes with its folder.
    """
    target = folder_of(data_dir) / f"{_ODD.sub('-', name)[:_SHOWN]}.log"
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        log.replace(target)


def prune(data_dir: Path) -> None:
    """Remove all but the newest."""
    with contextlib.suppress(FileNotFoundError):
        found = sorted(folder_of(data_dir).glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in found[:-KEPT]:
            path.unlink(missing_ok=True)
