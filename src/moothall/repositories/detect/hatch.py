"""What hatch's environments for tests hold, as words for pip. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moothall.repositories.detect.project import Project, strings, table
from moothall.repositories.detect.requirements import (
    OTHER_PURPOSE,
    REQUIREMENT,
    RUNS_TESTS,
    TEST_GROUPS,
    expand_group,
    own_extras,
)


def hatch_words(project: Project, pyproject: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the environments for tests: those with such a name, else those whose scripts run tests, else the usual one."""
    envs = {**table(project.toml("hatch.toml"), "envs"), **table(pyproject, "tool", "hatch", "envs")}
    names = {word for name in TEST_GROUPS for word in (name, f"hatch-{name}")} & set(envs)
    running = [name for name, env in envs.items() if RUNS_TESTS.search(json.dumps(table(env, "scripts"), default=str))]
    for name in sorted(names) or [name for name in running if not OTHER_PURPOSE.search(name)] or ["default"]:
        yield f"hatch's environment {name}", _words(envs, pyproject, name, ())


def _words(envs: Mapping[str, Any], pyproject: Mapping[str, Any], name: str, above: tuple[str, ...]) -> list[str]:
    env = table(envs, name)
    template = env.get("template", "" if env.get("detached") else "default")
    found = _words(envs, pyproject, template, (*above, name)) if template in envs and template not in (*above, name) else []
    found += [*strings(env.get("dependencies")), *strings(env.get("extra-dependencies"))]
    standard = table(pyproject, "dependency-groups")
    found += [word for group in strings(env.get("dependency-groups")) for word in expand_group(standard, group, ())]
    kept = [word for word in found if REQUIREMENT.fullmatch(word) or word == "-e" or word.startswith(".[")]
    return kept + own_extras(strings(env.get("features")))
