"""The tools of a code block as Python functions, with `ws` and `agents`. Standard library only: it
runs inside the sandbox.

Every function calls the trusted side; nothing here enforces limits.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Message = dict[str, Any]

_WS = {"read": "files.read", "write": "files.write", "glob": "files.list"}
_MAX_DEPTH = 30
_READ_LINES = 512
_CUT_MARK = " characters left out …\n"  # as in authorization/limits.py


class ToolError(RuntimeError):
    """A tool call failed. `status` is the result's status on the wire."""

    def __init__(self, tool: str, status: str, reason: str) -> None:
        super().__init__(f"{tool}: {status}: {reason}")
        self.tool, self.status, self.reason = tool, status, reason


class ToolProxy:
    """Converts function calls of the code to tool calls. `tools` maps names to the names of their
    arguments, in order.
    """

    def __init__(
        self,
        tools: Mapping[str, Sequence[str]],
        call_tool: Callable[[str, Message], Message],
        *,
        agents: bool,
    ) -> None:
        self._tools = tools
        self._call_tool = call_tool
        self._agents = agents
        self._named: dict[tuple[str, str], str] = {}
        for tool in tools:
            group, _, name = tool.partition(".")
            self._named.setdefault((group, _python_name(name)), tool)
        groups = {name.partition(".")[0] for name in tools}
        if any(tool in tools for tool in _WS.values()):
            groups.add("ws")
        if agents:
            groups.add("agents")
        self.groups = tuple(sorted(groups))

    def names(self, group: str) -> list[str]:
        """Return the functions of a group."""
        if group == "ws":
            return [name for name, tool in _WS.items() if tool in self._tools]
        if group == "agents":
            return ["run"] if self._agents else []
        return [name for tool_group, name in self._named if tool_group == group]

    def call(self, group: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call of the code. Raises `ToolError`, and `AttributeError` and `TypeError` for
        invalid calls.
        """
        if name not in self.names(group):
            raise AttributeError(
                f"there is no {group}.{name} here; there are: "
                f"{', '.join(self.names(group)) or 'none'}"
            )
        if group == "ws":
            return getattr(self, f"_{name}")(*args, **kwargs)
        if group == "agents":
            return self._run_agents(*args, **kwargs)
        return self._tool(self._named[group, name], args, kwargs)

    def _tool(self, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
        parameters = self._tools[tool]
        if len(args) > len(parameters):
            raise TypeError(
                f"{tool}({', '.join(parameters)}) takes at most {len(parameters)} arguments, and "
                f"{len(args)} were given"
            )
        positional = dict(zip(parameters, args, strict=False))
        if duplicates := set(positional) & set(kwargs):
            raise TypeError(f"{tool} got {min(duplicates)!r} twice")
        return self._call(tool, {**positional, **kwargs})

    def _call(self, tool: str, arguments: Message) -> Message:
        answer = self._call_tool(tool, {name: plain(value) for name, value in arguments.items()})
        if answer.get("status") != "success":
            raise ToolError(
                tool, str(answer.get("status")), str(answer.get("error") or "no reason was given")
            )
        output: Message = answer.get("output") or {}
        return output

    def _read(self, path: str) -> str:
        """Return a whole file of any length. If a result was cut, the rest is requested again."""
        parts: list[str] = []
        start, lines, total = 1, _READ_LINES, 1
        while start <= total:
            part = self._call("files.read", {"path": path, "start": start, "lines": lines})
            content, total = str(part["content"]), int(part["total_lines"])
            expected = min(lines, total - start + 1)
            is_last = start + expected > total
            if total and not _is_whole_file(
                content,
                expected,
                is_complete=not part.get("truncated") if is_last else content.endswith("\n"),
            ):
                if lines == 1:
                    raise ToolError(
                        "ws.read", "output", f"line {start} of {path} is too long to be read whole"
                    )
                lines //= 2
                continue
            parts.append(content)
            start += expected
        return "".join(parts)

    def _write(self, path: str, content: str) -> None:
        self._call("files.write", {"path": path, "content": content})

    def _glob(self, pattern: str) -> list[str]:
        return [
            path
            for path in self._call("files.list", {"glob": pattern})["entries"]
            if not path.endswith("/")
        ]

    def _run_agents(self, prompts: Any, tools: Any = None) -> Any:
        is_single = isinstance(prompts, str)
        tool_option = {} if tools is None else {"tools": list(tools)}
        answers = self._call(
            "agents.run", {"prompts": [prompts] if is_single else list(prompts), **tool_option}
        )["answers"]
        return answers[0] if is_single else answers


def _python_name(name: str) -> str:
    """Return the last part of a tool's name as a Python name: `mcp.notes.add-line` is
    `mcp.notes_add_line`.
    """
    return "".join(char if char.isalnum() else "_" for char in name)


def _is_whole_file(content: str, rows: int, *, is_complete: bool) -> bool:
    """Return whether a result has `rows` lines and was not truncated."""
    return (
        is_complete
        and _CUT_MARK not in content
        and content.count("\n") + (not content.endswith("\n")) == rows
    )


def plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a value as JSON data; values that JSON lacks become text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else _show(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)  # noqa: PLR0124 - JSON has no NaN
    if depth and isinstance(value, dict):
        return {
            key if isinstance(key, str) else _show(key): plain(item, depth - 1)
            for key, item in value.items()
        }
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    return _show(value)


def _show(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the repr is the code's own
        return f"<{type(value).__name__}: {error}>"
