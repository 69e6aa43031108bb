"""Which failing tests are held back from seats."""

from __future__ import annotations

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Prepared, Profile
from moothall.fleet.preparing import files_to_hold, hide_files
from moothall.repositories.patch_rules import matches


def _prepared(cases: dict[str, str], flaky: tuple[str, ...] = ()) -> Prepared:
    files = tuple(sorted({case.partition("::")[0] for case in cases}))
    run = CheckRun("tests", Verdict.FAILED, cases)
    return Prepared(Base("r", "a" * 40, Profile()), "key", files, {"tests": run}, flaky)


def test_whole_files_are_held_back_up_to_the_share_and_one_always_stays() -> None:
    cases = {f"tests/test_{name}.py::test_{number}": "failed" for name in "abcd" for number in range(2)}
    assert len(files_to_hold(_prepared(cases), 0.5)) == 2
    assert len(files_to_hold(_prepared(cases), 0.99)) == 3
    assert files_to_hold(_prepared(cases), 0.5) == files_to_hold(_prepared(dict(reversed(cases.items()))), 0.5)
    assert files_to_hold(_prepared(cases), 0.0) == ()


def test_few_cases_or_one_file_are_not_divided() -> None:
    assert files_to_hold(_prepared({f"tests/test_a.py::test_{number}": "failed" for number in range(9)}), 0.5) == ()
    three = {f"tests/test_{name}.py::test_x": "failed" for name in "abc"}
    assert files_to_hold(_prepared(three), 0.5) == ()
    four = {**three, "tests/test_d.py::test_x": "failed"}
    assert files_to_hold(_prepared(four), 0.5) != ()
    assert files_to_hold(_prepared(four, flaky=("tests/test_d.py::test_x",)), 0.5) == ()


def test_a_file_whose_name_reads_like_a_pattern_is_hidden_and_no_other() -> None:
    hidden = hide_files(
        Base("r", "a" * 40, Profile(hidden=("secret/**",))), ("pages/[id].test.tsx", "tests/a*.py")
    ).profile.hidden
    assert all(matches(hidden, path) for path in ("pages/[id].test.tsx", "tests/a*.py", "secret/x.py"))
    assert not any(matches(hidden, path) for path in ("pages/i.test.tsx", "tests/ab.py"))
