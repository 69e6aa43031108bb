"""A pytest plugin: `--part K/N` runs one of N parts of the tests. All of them together are slow, so
CI runs one part per commit.
"""

from __future__ import annotations

from zlib import crc32

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", default="1/1", help="which of the tests are run, such as 2/4; all without it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(
            f"--part {part}/{parts}: the first of its numbers is from 1 to the second"
        )
    # By name, not by position: a failed test that is run again is in the same part.
    chosen = [item for item in items if crc32(item.nodeid.encode()) % parts == part - 1]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
