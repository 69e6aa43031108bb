"""Classification of test files by their paths."""

from __future__ import annotations

import re

_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|(?:^|/)tests?\.py$|\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)(?:test|test-[^/]*|[^/]*[-_]test)\.[cm]?[jt]s$|(?:^|/)(?:tests?|__tests__|spec)/(?:.*/)?[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)


def is_crate_module(path: str) -> bool:
    """True if a test file is a module of a Rust crate, such as `src/tests.rs`, rather than a
    separate test target.
    """
    return path.endswith(".rs") and "src" in path.split("/")[:-1]


def is_run_alone(path: str) -> bool:
    """True if a runner accepts a test file by its path."""
    return bool(_RUN_ALONE.search(path)) and not is_crate_module(path)
