"""Screens a patch, without running it, for what a person should look at: what reaches for that which judges it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moothall.domain.repository import Prepared
from moothall.ranking.screening.data import data_files, find_mentions
from moothall.ranking.screening.helpers import altered_helpers
from moothall.ranking.screening.reach import reaches
from moothall.ranking.screening.shadows import find_shadows, find_stars, new_modules

__all__ = ["screen", "tests_to_read"]


def tests_to_read(diff: str, own_tests: Sequence[str]) -> str:
    """Return the ending of the base's test files that `screen` compares a patch with."""
    return "" if data_files(diff, own_tests) else ".py"


def screen(
    diff: str, own_tests: Sequence[str], texts: Mapping[str, str], tests: Mapping[str, str], base: Prepared
) -> tuple[str, ...]:
    """Return lines of a patch that a person should look at, as "path:line: why".

    `texts`: the code that it changes, as on the base. `tests`: the base's test files, those of `tests_to_read`.
    """
    of_python = {path: text for path, text in tests.items() if path.endswith(".py")}
    modules = new_modules(diff, base.files, base.base.profile.folders.values())
    cases = {case for run in base.runs.values() for case, result in run.cases.items() if result in {"passed", "failed"}}
    paths = data_files(diff, own_tests)
    return (
        *reaches(diff, texts, own_tests, base.files),
        *altered_helpers(diff, texts, own_tests),
        *(find_shadows(modules, of_python, cases) if modules else ()),
        *(find_stars(diff, texts, of_python) if ".py" in diff else ()),
        *(find_mentions(paths, tests) if paths else ()),
    )
