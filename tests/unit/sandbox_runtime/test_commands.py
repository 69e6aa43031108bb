"""The reason why a command ended, from its exit code and the end of its output."""

from __future__ import annotations

import signal

import pytest

from moothall.sandbox_runtime.commands import CommandLimits, explain_end
from moothall.sandbox_runtime.processes import PeakUsage

LAYERS = CommandLimits(
    wall_seconds=10,
    cpu_seconds=10,
    output_bytes=1000,
    memory_bytes=10**9,
    processes=64,
    file_bytes=10**6,
    in_cgroup=True,
)


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (-signal.SIGXFSZ, ""),
        (128 + signal.SIGXFSZ, ""),
        (1, "OSError: [Errno 28] No space left on device"),
        (1, "OSError: [Errno 27] File too large: 'big'"),
        (1, "open big: no space left on device"),
        (2, "panic: write /workspace/big: file too large"),
        (1, "Error: ENOSPC: no space left on device, write"),
        (1, "Error: EFBIG: file too large, write"),
        (
            101,
            (
                "called `Result::unwrap()` on an `Err` value: Os { code: 28, kind: StorageFull, "
                'message: "No space left on device" }'
            ),
        ),
        (1, "java.io.IOException: No space left on device"),
        (1, "File size limit exceeded (core dumped)"),
        (1, "cp: error writing 'big': Disk quota exceeded"),
        (2, "make: *** [Makefile:2: big] Error 153\nENOSPC"),
    ],
)
def test_a_disk_limit_is_reported_as_disk_in_every_language(code: int, output: str) -> None:
    assert explain_end(code, output.encode(), PeakUsage(), LAYERS, 0.1) == "disk"


@pytest.mark.parametrize(
    ("code", "output", "status"),
    [
        (0, "No space left on device", "success"),
        (1, "AssertionError: 1 != 2", "success"),
        (1, "MemoryError", "memory"),
        (-signal.SIGXCPU, "", "cpu"),
        (1, "FENOSPCX", "success"),
    ],
)
def test_other_ends_are_reported_as_they_are(code: int, output: str, status: str) -> None:
    assert explain_end(code, output.encode(), PeakUsage(), LAYERS, 0.1) == status
