"""Names of test files."""

from __future__ import annotations

import re

RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|(?:^|/)tests?\.py$|\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)(?:test|test-[^/]*|[^/]*[-_]test)\.[cm]?[jt]s$|(?:^|/)(?:tests?|__tests__|spec)/(?:.*/)?[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)
"""Test files that a runner can be given by name."""
