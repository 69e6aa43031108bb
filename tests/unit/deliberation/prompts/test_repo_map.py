from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moothall.deliberation.prompts.excerpts import RepoMap, RepoMapper, RepoMapRequest, read_survey
from support.repos import SAMPLE, make_repo
from support.workspace import TempWorkspaces

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("a.py"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "name", "line", "text"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["spans", "homes", "map", "example"]), JSON))
def test_any_output_of_a_sandbox_is_read_as_a_repo_map(output: dict[str, Any]) -> None:
    survey = read_survey(output, {"a.py"}, 10)
    assert len(survey.map) <= 10
    assert {span.path for span in survey.spans} | set(survey.defining_files) <= {"a.py"}


def test_a_repo_map_is_bounded() -> None:
    span = {"path": "a.py", "name": "n" * 1000, "line": 1, "text": "t" * 100_000}
    survey = read_survey(
        {"spans": [span] * 1000, "map": "m" * 1000, "homes": ["a.py"] * 1000}, {"a.py"}, 50
    )
    assert (
        len(survey.spans),
        len(survey.spans[0].text),
        len(survey.spans[0].name),
        len(survey.defining_files),
    ) == (60, 8000, 300, 10)
    assert len(survey.map) == 50


async def test_an_identical_request_is_made_once_and_a_failure_yields_an_empty_repo_map(
    tmp_path: Path,
) -> None:
    repo = make_repo(tmp_path / "repo", dict(SAMPLE))
    workspaces = TempWorkspaces(repo, tmp_path / "workspaces")
    workspaces.root.mkdir()
    prepared = await workspaces.prepare()
    surveyor = RepoMapper(workspaces)
    order = RepoMapRequest(words=("greet",), map_chars=1000)
    survey = await surveyor.survey(prepared, order)
    assert "def " in survey.map
    assert await surveyor.survey(prepared, order) is survey
    assert [name for name in workspaces.opened if name.startswith("survey")] == [
        workspaces.opened[-1]
    ]
    workspaces.broken.add(workspaces.opened[-1])
    assert await RepoMapper(workspaces).survey(prepared, order) == RepoMap()
