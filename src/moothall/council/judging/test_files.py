"""Names of test files."""

from __future__ import annotations

import re

_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|(?:^|/)tests?\.py$|\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)(?:test|test-[^/]*|[^/]*[-_]test)\.[cm]?[jt]s$|(?:^|/)(?:tests?|__tests__|spec)/(?:.*/)?[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)


def is_run_alone(path: str) -> bool:
    """Whether a path is a test file that a runner can be given by name."""
    return bool(_RUN_ALONE.search(path))
