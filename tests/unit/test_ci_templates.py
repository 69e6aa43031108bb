"""The action, the GitLab template, the hook and the dev container follow their schemas, and no text
of a caller or a model becomes part of a script. Texts that list levels of evidence list them all.
"""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
import yaml

from moothall.domain.evidence import EvidenceLevel
from support.documented import check_command

ROOT = Path(__file__).parents[2]
FILES = {"action.yml": "github-actions", "deploy/ci/moothall.gitlab-ci.yml": "gitlab-ci"}
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES)
def test_the_description_of_the_lowest_level_names_all_levels(path: str) -> None:
    levels = ", ".join(level.words for level in reversed(EvidenceLevel))
    assert f"({levels})" in (ROOT / path).read_text(encoding="utf-8")


def test_the_comments_of_the_wire_name_all_levels() -> None:
    text = (ROOT / "protos/orchestrator/v1/orchestrator.proto").read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if "//" in line and "reproduced" in line]
    assert len(comments) == 3
    for comment in comments:
        assert all(level.value in comment for level in EvidenceLevel)


@pytest.mark.parametrize(("path", "schema"), FILES.items())
def test_each_file_follows_its_schema(path: str, schema: str) -> None:
    folder = files("check_jsonschema") / "builtin_schemas/vendor"
    jsonschema.validate(
        yaml.safe_load((ROOT / path).read_text(encoding="utf-8")),
        orjson.loads((folder / f"{schema}.json").read_bytes()),
    )


def test_no_script_of_the_action_contains_an_expression() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash", "the only one that stops at an error in a pipe"


def test_every_input_is_described_and_used() -> None:
    used = str(ACTION["runs"]) + str(ACTION["outputs"])
    for name, declared in ACTION["inputs"].items():
        assert f"inputs.{name} " in used, name
        assert declared["description"], name
    steps = {step["id"]: step["run"] for step in ACTION["runs"]["steps"] if "id" in step}
    for output, declared in ACTION["outputs"].items():
        step = declared["value"].split(".")[1]
        assert f'"{output}=$' in steps[step], output


def test_the_hook_is_a_command_that_exists() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    check_command(hook["entry"])
    assert hook["language"] == "python"
    assert (hook["pass_filenames"], hook["always_run"]) == (False, True)


def test_the_dev_container_matches_the_stage_and_security_profiles_of_compose() -> None:
    container: dict[str, Any] = orjson.loads(
        (ROOT / ".devcontainer/devcontainer.json").read_bytes()
    )
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    server = compose["services"]["moothall"]
    folder = ROOT / ".devcontainer"
    assert (folder / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile.workspace"
    assert (folder / container["build"]["context"]).resolve() == ROOT
    assert container["build"]["target"] == server["build"]["target"]
    options = {option.removeprefix("--security-opt=") for option in container["runArgs"]}
    assert options == {option for option in server["security_opt"] if "unconfined" in option}
    assert (ROOT / shlex.split(container["postCreateCommand"])[0]).exists()
