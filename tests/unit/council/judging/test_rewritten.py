from __future__ import annotations

import pytest

from moothall.council.judging.rewritten import Rewritten
from moothall.domain.evidence import CheckRun, Verdict
from moothall.errors import WorkspaceFailed


@pytest.mark.parametrize(
    ("status", "output", "why"),
    [
        ("timeout", "it took longer than 9 s\nerror: more", ": it took longer than 9 s"),
        ("success", "   Compiling shop v0.1.0\nerror[E0308]: mismatched types\n", r": error\[E0308\]: mismatched types"),
        ("success", "0 passing", "$"),
    ],
)
def test_a_run_that_tells_of_no_test_says_why(status: str, output: str, why: str) -> None:
    run = CheckRun("tests", Verdict.FAILED, output=output, status=status)
    with pytest.raises(WorkspaceFailed, match=f"^none of its tests was told of{why}"):
        Rewritten({}, {"tests": ("shop::adds",)}).told({"tests": run})
