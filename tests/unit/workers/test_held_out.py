"""The failing tests that are held back from seats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.evidence import HIDDEN, CheckRun, Verdict
from moothall.domain.repository import Base, Prepared, Profile
from moothall.orchestrator.request_planning import store_hidden
from moothall.repositories.patch_rules import matches
from moothall.workers.preparing import hide_files, prepare, select_held_out_files
from support.council import open_council


def _prepared_with(cases: dict[str, str], flaky: tuple[str, ...] = ()) -> Prepared:
    files = tuple(sorted({case.partition("::")[0] for case in cases}))
    run = CheckRun("tests", Verdict.FAILED, cases)
    return Prepared(Base("r", "a" * 40, Profile()), "key", files, {"tests": run}, flaky)


def test_whole_files_are_held_back_up_to_the_share_and_one_file_always_remains() -> None:
    cases = {
        f"tests/test_{name}.py::test_{number}": "failed" for name in "abcd" for number in range(2)
    }
    assert len(select_held_out_files(_prepared_with(cases), 0.5)) == 2
    assert len(select_held_out_files(_prepared_with(cases), 0.99)) == 3
    assert select_held_out_files(_prepared_with(cases), 0.5) == select_held_out_files(
        _prepared_with(dict(reversed(cases.items()))), 0.5
    )
    assert select_held_out_files(_prepared_with(cases), 0.0) == ()


def test_few_cases_or_a_single_file_are_not_divided() -> None:
    assert (
        select_held_out_files(
            _prepared_with({f"tests/test_a.py::test_{number}": "failed" for number in range(9)}),
            0.5,
        )
        == ()
    )
    three_cases = {f"tests/test_{name}.py::test_x": "failed" for name in "abc"}
    assert select_held_out_files(_prepared_with(three_cases), 0.5) == ()
    four_cases = {**three_cases, "tests/test_d.py::test_x": "failed"}
    assert select_held_out_files(_prepared_with(four_cases), 0.5) != ()
    assert (
        select_held_out_files(_prepared_with(four_cases, flaky=("tests/test_d.py::test_x",)), 0.5)
        == ()
    )


def test_a_file_named_like_a_pattern_is_hidden_and_no_other_file() -> None:
    hidden = hide_files(
        Base("r", "a" * 40, Profile(hidden=("secret/**",))), ("pages/[id].test.tsx", "tests/a*.py")
    ).profile.hidden
    assert all(
        matches(hidden, path) for path in ("pages/[id].test.tsx", "tests/a*.py", "secret/x.py")
    )
    assert not any(matches(hidden, path) for path in ("pages/i.test.tsx", "tests/ab.py"))


@pytest.mark.e2e
async def test_hidden_tests_that_no_check_runs_are_named(tmp_path: Path) -> None:
    async with open_council(tmp_path, lambda *_: "") as app:
        profile = replace(app.prepared.base.profile, folders={"tests": "python"})
        prepared = replace(app.prepared, base=replace(app.prepared.base, profile=profile))

        class Ready:
            def __getattr__(self, name: str) -> Any:
                return getattr(app.workspaces, name)

            async def resolve(self, _ref: Any, *, tenant: str = "local") -> Base:
                del tenant
                return prepared.base

            async def prepare(self, _base: Base, _announce: Any = None) -> Prepared:
                return prepared

        tests = {"python/tests/test_a.py": "", "web/tests/a.test.js": ""}
        key = await store_hidden(app.bus.bucket(HIDDEN), tests, "local")
        ready = await prepare(app.bus, Ready(), app.deliberation(hidden=key))
        tasks = [recorded.event.data.get("current_task") async for recorded in app.bus.replay()]
    assert ready is not None
    assert ready.hidden == tests
    assert (
        "No check runs these hidden tests: web/tests/a.test.js. Add one for their folder to "
        ".moothall.toml." in tasks
    )
