"""What a seat with native tools reads at submit."""

from __future__ import annotations

from moothall.council.checking import Standing
from moothall.council.prompting.tool_results import is_clean, submission_text
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Patch, Prepared, Profile

BASE = {f"tests/test_{name}.py::x": "passed" for name in "abcd"}
CHANGE = Patch("0" * 40, "1" * 40, "diff", ("src/a.py", "tests/test_new.py"), ("tests/test_new.py",))


def prepared() -> Prepared:
    profile = Profile(checks={"tests": ("pytest",)})
    return Prepared(Base("r", "0" * 40, profile), "k", (), {"tests": CheckRun("tests", Verdict.PASSED, BASE)})


def standing(*cases: str, narrowed: bool = True) -> Standing:
    run = CheckRun("tests", Verdict.PASSED, dict.fromkeys(cases, "passed"))
    return Standing(CHANGE, {"tests": run} if cases else {}, narrowed=("tests",) if narrowed else ())


def test_a_narrowed_run_says_how_many_of_the_existing_tests_it_had() -> None:
    some = standing("tests/test_a.py::x", "tests/test_new.py::y")
    assert "1 of 4 existing tests ran: those near your change." in submission_text(some, prepared(), {}, 2000)
    assert is_clean(some, prepared(), {})
    whole = standing(*BASE, narrowed=False)
    assert "existing tests ran" not in submission_text(whole, prepared(), {}, 2000)


def test_where_no_existing_test_ran_the_seat_is_told_and_asked_to_confirm() -> None:
    own = standing("tests/test_new.py::y")
    assert "0 of 4 existing tests ran: none was found near your change." in submission_text(own, prepared(), {}, 2000)
    assert not is_clean(own, prepared(), {})
    assert "tests: 0 of 4 existing tests ran: none" in submission_text(standing(), prepared(), {}, 2000)
