"""The result of a command in the sandbox. Standard library only: part of the executor."""

from __future__ import annotations

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from typing import Any


class CommandResult:
    """`status` is a tool status. `output` is the head and tail of the output, `total` its size in
    bytes. `contended`: the seconds spent waiting for a core. `left`: the processes that had to be
    killed with the command.
    """

    __slots__ = (
        "contended",
        "cpu_ms",
        "exit_code",
        "left",
        "max_rss_bytes",
        "output",
        "seconds",
        "status",
        "total",
    )

    def __init__(
        self,
        *,
        status: str,
        exit_code: int,
        output: bytes,
        total: int,
        seconds: float,
        cpu_ms: int,
        max_rss_bytes: int,
        contended: float = 0.0,
        left: tuple[str, ...] = (),
    ) -> None:
        self.status, self.exit_code, self.output, self.total = status, exit_code, output, total
        self.seconds, self.cpu_ms, self.max_rss_bytes = seconds, cpu_ms, max_rss_bytes
        self.contended, self.left = contended, left

    def usage(self) -> dict[str, int]:
        """Return the kernel's measurements, children included."""
        return {"cpu_ms": self.cpu_ms, "max_rss_bytes": self.max_rss_bytes}

    def document(self) -> dict[str, Any]:
        """Return the result as a message."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "output": self.output.decode("utf-8", "replace"),
            "output_bytes": self.total,
            "duration_ms": round(self.seconds * 1000),
            "contended_ms": round(self.contended * 1000),
            "usage": self.usage(),
        }
