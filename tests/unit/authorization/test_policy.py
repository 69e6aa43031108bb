from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.checks import Stopped, check_schema
from moothall.authorization.rules import Mode, Policy, policies_folder, policy_question
from moothall.domain.tool import Grant, ToolStatus
from moothall.errors import ConfigurationError, PolicyUnavailable
from moothall.policy import Rego
from support.tool_gateway import App, open_app, tool_call

ALL = Grant(tools=("*",))
DENY_SECRETS = """package moothall.tools
import rego.v1
default decision := {"allow": true}
decision := {"allow": false, "reason": "secrets stay closed"} if startswith(input.arguments.path, "secret/")
decision := {"allow": false, "reason": "ask first", "park": true} if input.tool == "files.delete"
"""  # noqa: E501 - a line of embedded text


class Down:
    """An unreachable policy engine."""

    attempts = 0

    async def decide(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        self.attempts += 1
        raise PolicyUnavailable("connection refused")


class Decides:
    """A policy engine that returns one answer and records its queries."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.documents: list[Mapping[str, Any]] = []

    async def decide(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        self.documents.append(document)
        answer: Mapping[str, Any] = self.answer
        return answer


@contextmanager
def rego(folder: Path, text: str = DENY_SECRETS) -> Iterator[Rego]:
    """A policy engine that is closed at the end: one that a garbage collector drops in another
    thread complains.
    """
    (folder / "tools.rego").write_text(text, encoding="utf-8")
    with closing(Rego(folder)) as engine:
        yield engine


async def test_a_rego_policy_refuses_with_its_reason(tmp_path: Path) -> None:
    with rego(tmp_path) as engine:
        async with open_app(tmp_path, policy=Policy("enforce", engine.decide)) as app:
            closed = await app.tool_gateway.call(app.seat(), tool_call(path="secret/a"))
            open_ = await app.tool_gateway.call(app.seat(), tool_call(path="src/a", number=2))
    assert (closed.status, closed.error) == (
        ToolStatus.BLOCKED,
        "files.read is refused by policy: secrets stay closed",
    )
    assert open_.status is ToolStatus.SUCCESS
    assert [call.arguments["path"] for call in app.workspace.calls] == ["src/a"]


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"allow": "yes"}, {"allow": 1}, {"allow": True, "park": "no"}, [], {"allow": None}],
)
async def test_an_unclear_policy_answer_is_a_deny(tmp_path: Path, answer: Any) -> None:
    async with open_app(tmp_path, policy=Policy("enforce", Decides(answer).decide)) as app:
        result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))
    assert result.status is ToolStatus.BLOCKED
    assert "nothing runs until it can" in result.error
    assert app.workspace.calls == []


@pytest.mark.parametrize(("mode", "ran"), [("enforce", False), ("dry-run", True), ("off", True)])
async def test_an_unavailable_engine_blocks_calls_only_if_enforced(
    tmp_path: Path,
    mode: Mode,
    ran: bool,  # noqa: FBT001 - a column of the table
) -> None:
    engine = Down()
    async with open_app(tmp_path, policy=Policy(mode, engine.decide)) as app:
        results = [
            await app.tool_gateway.call(app.seat(), tool_call(path="a", number=number))
            for number in (1, 2)
        ]
    assert bool(app.workspace.calls) is ran
    assert engine.attempts == (0 if mode == "off" else 2)  # a failed query is repeated
    assert {result.status for result in results} == {
        ToolStatus.SUCCESS if ran else ToolStatus.BLOCKED
    }


@pytest.mark.parametrize(("mode", "ran"), [("enforce", False), ("dry-run", True), ("off", True)])
async def test_a_denied_call_runs_if_the_policy_is_not_enforced(
    tmp_path: Path,
    mode: Mode,
    ran: bool,  # noqa: FBT001 - as above
) -> None:
    with rego(tmp_path) as engine:
        async with open_app(tmp_path, policy=Policy(mode, engine.decide)) as app:
            result = await app.tool_gateway.call(app.seat(), tool_call(path="secret/a"))
            assert (bool(app.workspace.calls), result.status) == (
                ran,
                ToolStatus.SUCCESS if ran else ToolStatus.BLOCKED,
            )


async def test_a_policy_answer_is_cached_for_its_time_and_the_same_question_only(app: App) -> None:
    clock = [0.0]
    engine = Decides({"allow": True})
    policy = Policy("enforce", engine.decide, keep_seconds=60, clock=lambda: clock[0])
    first_call, other_call = (check_schema(tool_call(path=path), ALL, 1000) for path in ("a", "b"))
    for checked in (first_call, first_call, other_call, first_call):
        await policy.check(app.seat(), checked)
    assert len(engine.documents) == 2
    await policy.check(app.seat(role="qa"), first_call)
    assert len(engine.documents) == 3
    clock[0] = 61
    await policy.check(app.seat(), first_call)
    assert len(engine.documents) == 4


async def test_a_policy_receives_all_fields_that_it_reads(app: App) -> None:
    engine = Decides({"allow": True})
    checked = check_schema(tool_call("files.write", path="a", content="x" * 301), ALL, 1000)
    await Policy("enforce", engine.decide).check(app.seat(), checked)
    assert engine.documents == [
        {
            "tenant": "local",
            "principal": "local",
            "role": "dev",
            "persona": "",
            "tool": "files.write",
            "category": "files",
            "operation": "write",
            "version": "1.0.0",
            "tags": ["files", "change"],
            "requirements": {"os_access": False, "network_access": False, "file_system": "write"},
            "arguments": {"path": "a", "content": {"characters": 301}},
        }
    ]


_ARGUMENTS = st.fixed_dictionaries(
    {
        "path": st.text(st.characters(codec="utf-8"), min_size=1, max_size=3),
        "content": st.text(max_size=2) | st.just("x" * 400),
    }
)


@given(first_arguments=_ARGUMENTS, second_arguments=_ARGUMENTS)
async def test_different_policy_questions_are_never_equal(
    first_arguments: dict[str, Any], second_arguments: dict[str, Any]
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        async with open_app(Path(folder)) as app:
            seat = app.seat()
            queries = [
                policy_question(seat, check_schema(tool_call("files.write", **args), ALL, 10_000))
                for args in (first_arguments, second_arguments)
            ]
    assert (queries[0] == queries[1]) is (queries[0].document() == queries[1].document())
    assert (first_arguments == second_arguments) is (queries[0] == queries[1])


def test_invalid_policy_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no policy in"):
        Rego(tmp_path)
    with (
        pytest.raises(ConfigurationError, match=r"the policy .*tools\.rego cannot be used"),
        rego(tmp_path, "package x\n what?"),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match=r"need a package moothall\.tools"),
        rego(tmp_path, "package other\ndecision := 1"),
    ):
        pass


async def test_a_policy_without_a_default_gives_no_answer(tmp_path: Path) -> None:
    text = (
        'package moothall.tools\nimport rego.v1\ndecision := {"allow": true} if input.tool == '
        '"git.log"'
    )
    with rego(tmp_path, text) as engine:
        with pytest.raises(PolicyUnavailable):
            await engine.decide({"tool": "files.read"})
        assert await engine.decide({"tool": "git.log"}) == {"allow": True}


@pytest.mark.parametrize(
    ("operation", "allow", "park"),
    [
        ("read", True, False),
        ("write", True, False),
        ("execute", True, False),
        ("outside", False, True),
        ("new", False, False),
    ],
)
async def test_the_default_policy_allows_workspace_operations_and_parks_outside_ones(
    operation: str,
    allow: bool,  # noqa: FBT001 - a column of the table
    park: bool,  # noqa: FBT001 - as above
) -> None:
    with closing(Rego(policies_folder())) as engine:
        decision = await engine.decide({"operation": operation})
    assert (decision["allow"], decision.get("park", False)) == (allow, park)


async def test_a_refusal_states_whether_an_operator_may_allow_it(app: App, tmp_path: Path) -> None:
    with rego(tmp_path) as engine:
        policy = Policy("enforce", engine.decide)
        for tool, path, allowed in (("files.delete", "a", True), ("files.info", "secret/a", False)):
            with pytest.raises(Stopped) as stopped:
                await policy.check(app.seat(), check_schema(tool_call(tool, path=path), ALL, 1000))
            assert stopped.value.may_be_allowed is allowed
