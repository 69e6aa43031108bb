from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from moothall.sandbox.cgroups import cores, memory, memory_limit, quota


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu.max": "what?\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_quota_of_a_cgroup_is_read(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert quota(tmp_path) == expected


def test_the_number_of_cores_is_at_most_that_available_to_the_process() -> None:
    assert 1 <= cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "2000000000\n"}, 2e9),
        ({"memory.max": "max\n"}, math.inf),
        ({"memory.limit_in_bytes": "1000000000\n"}, 1e9),
        ({}, math.inf),
    ],
)
def test_the_memory_limit_of_a_cgroup_is_read(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert memory_limit(tmp_path) == expected


def test_the_memory_is_at_most_that_of_the_machine() -> None:
    assert 0 < memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
