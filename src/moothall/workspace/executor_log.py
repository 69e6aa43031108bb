"""The log of a sandbox, which is stored in the data directory after its workspace is closed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moothall.domain.codec import mapping_of
from moothall.domain.text import one_line

MAX_LOGS = 1000
"""How many logs of closed workspaces are stored; older ones are removed at the next start."""

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_VALUE_CHARS = 200


def log_folder(data_dir: Path) -> Path:
    """Return the folder with the logs of closed workspaces."""
    return data_dir / "logs" / "workspaces"


def format_line(op: str, request: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return a log line about a command: its program, its end and its usage. Arguments are left
    out, because they may contain a model's code or secrets. The result is hostile.
    """
    usage = mapping_of(result.get("usage"))
    argv = request.get("argv") or ("?",)
    program = next((part for part in argv if part != "env" and "=" not in str(part)), "?")
    fields = {
        "program": str(program),
        "status": result.get("status"),
        "exit_code": result.get("exit_code"),
        "ms": result.get("duration_ms"),
        "cpu_ms": usage.get("cpu_ms"),
        "max_rss_bytes": usage.get("max_rss_bytes"),
        "output_bytes": result.get("output_bytes"),
    }
    text = " ".join(
        f"{name}={one_line(str(value), _VALUE_CHARS)}"
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    )
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {op} {text}\n"


def store_log(log: Path, data_dir: Path, name: str) -> None:
    """Move the log of a closing workspace to the log folder. If that fails, it is removed with its
    folder.
    """
    target = log_folder(data_dir) / f"{_UNSAFE_CHARACTERS.sub('-', name)[:_VALUE_CHARS]}.log"
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        log.replace(target)


def prune(data_dir: Path) -> None:
    """Remove all but the newest logs."""
    with contextlib.suppress(FileNotFoundError):
        logs = sorted(log_folder(data_dir).glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-MAX_LOGS]:
            path.unlink(missing_ok=True)
