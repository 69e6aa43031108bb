"""The tools that a block of Python can call, without a sandbox."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.limits import cut_output
from moothall.sandbox_runtime.tool_proxy import ToolError, ToolProxy, plain

TOOLS = {
    "files.read": ("path", "start", "lines"),
    "files.write": ("path", "content"),
    "files.list": ("path", "glob"),
    "git.status": (),
}


class FakeWorkspace:
    """A workspace with these files; a result of more than `max_bytes` loses its middle, as at the
    gateway.
    """

    def __init__(self, max_bytes: int = 10**9, **files: str) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self.requested: list[tuple[str, dict[str, Any]]] = []

    def ask(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        self.requested.append((name, args))
        if name == "files.list":
            return {"status": "success", "output": {"entries": ["a/", "a/b.py"]}}
        if name != "files.read":
            return {"status": "blocked", "error": "not you"}
        rows = list(io.StringIO(self.files[args["path"]], newline="\n"))
        start = args.get("start", 1) - 1
        part = rows[start : start + args.get("lines", 2000)]
        output = {
            "content": "".join(part),
            "total_lines": len(rows),
            "truncated": start + len(part) < len(rows),
        }
        return {"status": "success", "output": cut_output(output, self.max_bytes)}


def test_arguments_are_passed_by_position_or_name() -> None:
    fake_workspace = FakeWorkspace(a="one\n")
    face = ToolProxy(TOOLS, fake_workspace.ask, agents=False)
    face.call("files", "read", ("a", 1), {"lines": 5})
    assert fake_workspace.requested == [("files.read", {"path": "a", "start": 1, "lines": 5})]
    with pytest.raises(TypeError, match="at most 3 arguments"):
        face.call("files", "read", (1, 2, 3, 4), {})
    with pytest.raises(TypeError, match="'path' twice"):
        face.call("files", "read", ("a",), {"path": "b"})


def test_a_failed_tool_raises_its_status_and_reason() -> None:
    face = ToolProxy(TOOLS, FakeWorkspace().ask, agents=False)
    with pytest.raises(ToolError, match=r"files\.write: blocked: not you") as raised:
        face.call("files", "write", ("a", "b"), {})
    assert (raised.value.tool, raised.value.status, raised.value.reason) == (
        "files.write",
        "blocked",
        "not you",
    )


def test_only_granted_tools_are_available() -> None:
    face = ToolProxy({"files.read": ("path",)}, FakeWorkspace().ask, agents=False)
    assert face.groups == ("files", "ws")
    assert face.names("ws") == ["read"]
    for group, name in (
        ("ws", "write"),
        ("files", "write"),
        ("files", "__class__"),
        ("agents", "run"),
    ):
        with pytest.raises(AttributeError):
            face.call(group, name, ("a",), {})
    assert "agents" in ToolProxy({}, FakeWorkspace().ask, agents=True).groups


def test_glob_returns_files() -> None:
    assert ToolProxy(TOOLS, FakeWorkspace().ask, agents=False).call("ws", "glob", ("**",), {}) == [
        "a/b.py"
    ]


@given(
    st.lists(st.integers(min_value=0, max_value=900) | st.just(1), max_size=60),
    st.integers(min_value=150, max_value=600),
    st.booleans(),
)
def test_a_file_is_read_completely_or_not_at_all(
    widths: list[int],
    max_bytes: int,
    ends_with_newline: bool,  # noqa: FBT001 - drawn
) -> None:
    text = "\n".join("ab" * (width // 2) for width in widths) + "\n" * ends_with_newline
    face = ToolProxy(TOOLS, FakeWorkspace(max_bytes, a=text).ask, agents=False)
    if max(widths, default=0) < max_bytes - 100:
        assert face.call("ws", "read", ("a",), {}) == text
    elif max(widths) > max_bytes:
        with pytest.raises(ToolError, match="too long to be read whole"):
            face.call("ws", "read", ("a",), {})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_any_value_is_converted_to_json(value: Any) -> None:
    import json

    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


def test_cyclic_values_are_converted() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "[...]" in str(plain(loop))


def test_a_tool_of_three_names_is_named_with_an_underscore() -> None:
    calls: list[str] = []

    def ask(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(f"{name} {arguments}")
        return {"status": "success", "output": {}}

    face = ToolProxy(
        {"mcp.notes.add-line": ("text",), "mcp.notes.add_line": ("text",), "files.read": ("path",)},
        ask,
        agents=False,
    )
    assert face.names("mcp") == ["notes_add_line"]
    face.call("mcp", "notes_add_line", ("hi",), {})
    face.call("files", "read", ("a",), {})
    assert calls == ["mcp.notes.add-line {'text': 'hi'}", "files.read {'path': 'a'}"]
