from __future__ import annotations

import json
import posixpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.checks import (
    Meter,
    Stopped,
    check_grants,
    check_schema,
    covers,
    refuse_path,
    relative_path,
)
from moothall.authorization.limits import (
    GatewayLimits,
    book_time,
    check_limits,
    check_spending,
    cut_output,
    reserve,
    shorten,
)
from moothall.authorization.rules import grant_for, read_grants, shipped_grants
from moothall.domain.ids import ROLES
from moothall.domain.text import encodable
from moothall.domain.tool import Grant, ToolStatus
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.tools.catalogue import intersection, is_granted, list_tools
from support.tool_gateway import tool_call
from support.tools import CATALOGUE

ALL = Grant(tools=("*",))


@pytest.mark.parametrize(
    "nested", [10**5000, json.loads("[" * 900 + "]" * 900)], ids=["long", "deep"]
)
def test_arguments_that_break_json_are_refused_without_an_exception(nested: Any) -> None:
    with pytest.raises(Stopped) as stopped:
        check_schema(tool_call("files.read", path=nested), ALL, 10**6)
    assert stopped.value.status is ToolStatus.INVALID


def test_every_role_has_a_grant_without_outside_access() -> None:
    for role in ROLES:
        names = {spec.name for spec in list_tools(grant_for(role))}
        assert "files.read" in names
        assert not any(CATALOGUE[name].outside for name in names)


def test_po_and_architect_have_no_writing_tools() -> None:
    for role in ("po", "architect"):
        assert not any(spec.writes for spec in list_tools(grant_for(role)))


def test_an_unknown_role_is_named() -> None:
    with pytest.raises(InvalidRequest, match="unknown role 'king'"):
        grant_for("king")


def test_a_grant_includes_the_protected_paths_of_the_profile() -> None:
    assert grant_for("DEV", ["tests/**"]).judged == ("tests/**",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roles: {dev: {tols: {}}}", "tols"),
        ("roles: 1", "roles"),
        ("roles: {", "not YAML"),
        ("roles: {king: {tools: {}}}", "unknown role 'king'"),
        ("roles: {dev: {tools: {files.reed: [read]}}}", "'files.reed', but there is no such tool"),
        ("roles: {dev: {tools: {files.read: [look]}}}", "files.read"),
        ("", "table of roles"),
    ],
)
def test_an_invalid_table_of_roles_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match="table of roles") as refused:
        read_grants(text)
    assert message in refused.value.message


def test_a_role_is_granted_tools_by_operation() -> None:
    grants = read_grants(
        "roles: {dev: {tools: {'files.*': [read], git.push: [outside], git.commit: [read]}}}"
    )
    assert "files.read" in grants.of("dev").tools
    assert "files.write" not in grants.of("dev").tools
    assert "git.push" in grants.of("dev").tools
    assert "git.commit" not in grants.of("dev").tools
    assert grants.of("qa").tools == ()


def test_a_persona_can_only_narrow_its_role() -> None:
    grants = shipped_grants()
    for role in ROLES:
        for persona in grants.personas:
            assert set(grants.of(role, persona=persona).tools) <= set(grants.of(role).tools)
    assert "files.write" not in grants.of("dev", persona="reader").tools
    assert "files.write" not in grants.of("po", persona="tester").tools
    with pytest.raises(
        InvalidRequest, match="unknown persona 'king'; the personas are reader, tester"
    ):
        grants.of("dev", persona="king")


_NAMES = st.lists(st.sampled_from(sorted(CATALOGUE)), unique=True)


@given(_NAMES, _NAMES)
def test_an_intersection_allows_only_tools_of_both_grants(
    first_tools: list[str], second_tools: list[str]
) -> None:
    common = intersection(Grant(tuple(first_tools), ("a",)), Grant(tuple(second_tools), ("b",)))
    assert set(common.tools) == set(first_tools) & set(second_tools)
    assert set(common.protected) == {"a", "b"}


def test_the_grant_check_works_on_its_own() -> None:
    checked = check_schema(tool_call("files.edit", path="a", old="b", new="c"), ALL, 1000)
    check_grants(ALL, checked)
    with pytest.raises(Stopped, match=r"granted are files\.read"):
        check_grants(Grant(tools=("files.read",)), checked)
    with pytest.raises(Stopped, match="protected: a"):
        check_grants(Grant(tools=("*",), protected=("a",)), checked)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/workspace/src/a.py", "src/a.py"),
        ("//workspace///src//./a.py", "src/a.py"),
        ("/workspace", "."),
        ("/workspace/", "."),
        ("/workspace/../etc/passwd", "../etc/passwd"),
        ("/workspace/tests/a.py::test_b[x//y]", "tests/a.py::test_b[x//y]"),
        ("/workspaces/a.py", "/workspaces/a.py"),
        ("/etc/../workspace/a.py", "/etc/../workspace/a.py"),
        ("/etc/passwd", "/etc/passwd"),
        ("workspace/a.py", "workspace/a.py"),
        ("src//a.py", "src//a.py"),
    ],
)
def test_an_absolute_path_in_the_workspace_becomes_relative(path: str, expected: str) -> None:
    assert relative_path(path) == expected


@pytest.mark.parametrize(
    "tool", [name for name, spec in CATALOGUE.items() if name.startswith("files.") and spec.writes]
)
@pytest.mark.parametrize(
    "path", ["/workspace/tests/a.py", "//workspace//tests/./a.py", "/workspace/./tests//a.py"]
)
def test_a_protected_path_is_protected_in_absolute_form(tool: str, path: str) -> None:
    further_arguments: dict[str, Any] = {
        "files.edit": {"old": "b", "new": "c"},
        "files.define": {"name": "f", "content": "x"},
    }
    arguments: dict[str, Any] = further_arguments.get(
        tool, {"content": "x"} if tool in {"files.write", "files.append"} else {}
    )
    checked = check_schema(tool_call(tool, path=path, **arguments), ALL, 1000)
    assert checked.arguments["path"] == "tests/a.py"
    check_grants(ALL, checked)
    with pytest.raises(
        Stopped, match=r"'tests/a\.py' may not be changed by this role \(protected: tests/\*\*\)"
    ):
        check_grants(Grant(tools=("*",), protected=("tests/**",)), checked)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", r"'/etc/passwd' is absolute"),
        ("/workspace2/a", "is absolute"),
        ("/workspace/../etc/passwd", r"leaves the workspace by '\.\.'"),
        ("//workspace//..//etc", "leaves the workspace"),
        ("/workspace//.git/config", r"is inside \.git"),
        ("/workspace/~root", "is absolute"),
        ("x::/../tests/a.py", "leaves the workspace"),
        ("x::/.git/config", r"is inside \.git"),
    ],
)
def test_an_absolute_path_outside_the_workspace_is_refused(path: str, reason: str) -> None:
    with pytest.raises(Stopped, match=reason) as stopped:
        check_grants(ALL, check_schema(tool_call("files.read", path=path), ALL, 1000))
    assert stopped.value.escape


@given(
    st.lists(
        st.sampled_from(["", ".", "..", "workspace", "tests", "a.py", ".git", "b::c"]), max_size=8
    )
)
def test_an_absolute_path_is_judged_by_its_real_target(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    relative = relative_path(path)
    if refuse_path(relative):
        return
    real = f"/{posixpath.normpath(path).lstrip('/')}/"
    assert real.startswith("/workspace/")
    assert covers("/tests/**", relative) is (
        real.startswith("/workspace/tests/") and real != "/workspace/tests/"
    )


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("tests/**", "tests/test_a.py", True),
        ("tests/**", "tests/a/b/c.py", True),
        ("tests/**", "tests", False),
        ("tests/**", "src/tests/a.py", False),
        ("**/tests/**", "src/tests/a.py", True),
        ("**/tests/**", "tests/a.py", True),
        ("conftest.py", "a/b/conftest.py", True),
        ("conftest.py", "a/my_conftest.py", False),
        ("/setup.py", "setup.py", True),
        ("/setup.py", "a/setup.py", False),
        ("**/test_*.py", "test_a.py", True),
        ("**/test_*.py", "x/y/test_a.py", True),
        (".github/workflows/", ".github/workflows/ci.yml", True),
        (".github/workflows/", "./.github//workflows/a/ci.yml", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z/y", True),
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("", "a", False),
        ("**", "a", True),
    ],
)
def test_patterns_match_like_gitignore(pattern: str, path: str, expected: bool) -> None:  # noqa: FBT001
    assert covers(pattern, path) is expected


def test_a_pathological_pattern_is_matched_quickly() -> None:
    assert not covers("/".join(["**", "*a*a*a*a*a*b"] * 30), "/".join(["a" * 60] * 60))


@given(
    st.lists(
        st.sampled_from(["..", ".", "a", "", ".git", "~", "b c", "-x", ".GIT. "]),
        min_size=1,
        max_size=6,
    )
)
def test_no_accepted_path_leaves_the_workspace_or_enters_git(parts: list[str]) -> None:
    path = "/".join(parts)
    if refuse_path(path):
        return
    assert not path.startswith(("/", "-", "~"))
    assert ".." not in parts
    assert not any(part.casefold().strip(". ") == "git" for part in parts)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=50), inner, max_size=10)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=50), JSON, max_size=8), st.integers(200, 1000))
def test_output_is_unchanged_or_cut_to_its_limit(output: dict[str, Any], limit: int) -> None:
    cut = cut_output(output, limit)
    size = len(json.dumps(output, ensure_ascii=False).encode())
    if size <= limit:
        assert cut == output
    else:
        assert cut["truncated"] is True
        assert len(json.dumps(cut, ensure_ascii=False).encode()) <= limit + 200


def test_a_long_text_does_not_displace_the_verdict() -> None:
    cut = cut_output({"output": "x" * 10_000 + "END", "verdict": "failed", "exit_code": 1}, 500)
    assert (cut["verdict"], cut["exit_code"]) == ("failed", 1)
    assert cut["output"].endswith("END")
    assert list(cut)[:3] == ["output", "verdict", "exit_code"]


def test_shortened_text_shows_how_much_is_missing() -> None:
    assert "900 characters left out" in shorten("x" * 1000, 100)
    assert shorten("short", 100) == "short"


@pytest.mark.parametrize(
    ("length", "limit"), [(93, 80), (81, 80), (1000, 80), (125, 100), (220, 200), (5, 1), (5, 0)]
)
def test_slightly_long_text_is_cut_at_its_end(length: int, limit: int) -> None:
    cut = shorten("x" * length, limit)
    assert cut == "x" * (limit - 1) + "…"
    assert len(cut) <= max(limit, 1)


@given(st.text(max_size=2000), st.integers(0, 1500))
def test_shortened_text_is_never_longer_than_before(text: str, limit: int) -> None:
    cut = shorten(text, limit)
    assert len(cut) <= max(len(encodable(text)), 1)
    assert cut.startswith(encodable(text)[: min(limit // 3, max(limit - 1, 0))])


def test_a_seats_seconds_are_reserved_while_a_call_runs_and_booked_afterwards() -> None:
    limits, meter = GatewayLimits(), Meter()
    with reserve(meter, 700) as first, reserve(meter, 700) as second:
        assert (first, second) == (700, 500)
        with pytest.raises(Stopped, match="1200 seconds") as stopped:
            check_spending(None, meter, limits)
        assert stopped.value.status is ToolStatus.BUDGET_EXCEEDED
    check_spending(None, meter, limits)
    with book_time(meter):
        pass
    assert meter.seconds > 0
    assert meter.calls == 2


def test_the_limit_check_works_on_its_own() -> None:
    check_limits(Meter(in_flight=1), 2)
    with pytest.raises(Stopped, match="still running"):
        check_limits(Meter(in_flight=2), 2)


def test_granted_tools_are_patterns() -> None:
    assert is_granted(Grant(tools=("files.*",)), "files.read")
    assert not is_granted(Grant(tools=("files.*",)), "filesystem.read")
