"""Names of test files."""

from __future__ import annotations

import re

_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|(?:^|/)tests?\.py$|\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)(?:test|test-[^/]*|[^/]*[-_]test)\.[cm]?[jt]s$|(?:^|/)(?:tests?|__tests__|spec)/(?:.*/)?[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)


def is_crate_module(path: str) -> bool:
    """Whether a test file is a module of a Rust crate, such as `src/tests.rs`, and no test target
    of its own.
    """
    return path.endswith(".rs") and "src" in path.split("/")[:-1]


def is_run_alone(path: str) -> bool:
    """Whether a path is a test file that a runner can be given by name."""
    return bool(_RUN_ALONE.search(path)) and not is_crate_module(path)
