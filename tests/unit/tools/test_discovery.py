from __future__ import annotations

import json
from typing import Any

import pytest

from moothall.tools.catalogue import ToolSpec
from moothall.tools.spec import Danger, Filters, discover, entry
from support.tools import CATALOGUE

SPECS = tuple(CATALOGUE.values())


def names(**filters: Any) -> list[str]:
    return [spec.name for spec in discover(SPECS, Filters(**filters))]


def test_all_given_filters_must_match() -> None:
    assert names() == list(CATALOGUE)
    assert names(categories=("git",), tags=("remote",)) == ["git.clone", "git.pull", "git.push"]
    assert names(query="regular EXPRESSION") == ["files.search"]
    assert names(categories=("tests",), profiles=("core",)) == ["tests.pytest"]
    assert names(query="no such words") == []
    assert names(limit=2) == ["files.read", "files.write"]
    assert not any(name.startswith("tests.") for name in names(exclude_dangerous=True))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_catalogue_describes_every_tool_completely(spec: ToolSpec) -> None:
    description = entry(spec)
    json.dumps(description)
    assert description["tags"]
    assert description["profiles"]
    assert bool(description["rate_limit"]["per_minute"]) is spec.dangerous
    assert description["limits"]["seconds"] > 0
    assert spec.requirements.network_access is spec.outside
    assert spec.requirements.os_access is (spec.danger is Danger.EXECUTE)
    if not spec.outside:
        assert (spec.requirements.file_system == "write") is (spec.danger is not Danger.READ)
    for example in spec.examples:
        spec.arguments.model_validate(dict(example.arguments))
        spec.output.model_validate(dict(example.output))
    assert spec.examples
