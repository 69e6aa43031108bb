"""What a block of Python sees of the world: tools as functions, `ws`, `agents`. Standard library
only: it runs inside.

Whatever a name does, it does by asking the trusted side; nothing here is a wall.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Message = dict[str, Any]

_WS = {"read": "files.read", "write": "files.write", "glob": "files.list"}
_DEPTH = 30
_LINES = 512
_LEFT_OUT = " characters left out …\n"  # as in authorization/limits.py


class ToolError(RuntimeError):
    """A tool did not succeed. `status` is the wire's word for how it ended."""

    def __init__(self, tool: str, status: str, reason: str) -> None:
        super().__init__(f"{tool}: {status}: {reason}")
        self.tool, self.status, self.reason = tool, status, reason


class ToolProxy:
    """Turns calls of the code into questions. `tools` are names with their arguments' names in
    order.
    """

    def __init__(
        self,
        tools: Mapping[str, Sequence[str]],
        ask: Callable[[str, Message], Message],
        *,
        agents: bool,
    ) -> None:
        self._tools = tools
        self._ask = ask
        self._agents = agents
        self._named: dict[tuple[str, str], str] = {}
        for tool in tools:
            group, _, name = tool.partition(".")
            self._named.setdefault((group, _attribute(name)), tool)
        groups = {name.partition(".")[0] for name in tools}
        if any(tool in tools for tool in _WS.values()):
            groups.add("ws")
        if agents:
            groups.add("agents")
        self.groups = tuple(sorted(groups))

    def names(self, group: str) -> list[str]:
        """Return what a group offers."""
        if group == "ws":
            return [name for name, tool in _WS.items() if tool in self._tools]
        if group == "agents":
            return ["run"] if self._agents else []
        return [name for of, name in self._named if of == group]

    def call(self, group: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a call of the code. Raises `ToolError`; `AttributeError` and `TypeError` for what
        cannot be asked.
        """
        if name not in self.names(group):
            raise AttributeError(
                f"there is no {group}.{name} here; there are: "
                f"{', '.join(self.names(group)) or 'none'}"
            )
        if group == "ws":
            return getattr(self, f"_{name}")(*args, **kwargs)
        if group == "agents":
            return self._run(*args, **kwargs)
        return self._tool(self._named[group, name], args, kwargs)

    def _tool(self, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
        known = self._tools[tool]
        if len(args) > len(known):
            raise TypeError(
                f"{tool}({', '.join(known)}) takes at most {len(known)} arguments, and {len(args)} "
                "were given"
            )
        given = dict(zip(known, args, strict=False))
        if twice := set(given) & set(kwargs):
            raise TypeError(f"{tool} got {min(twice)!r} twice")
        return self._call(tool, {**given, **kwargs})

    def _call(self, tool: str, arguments: Message) -> Message:
        answer = self._ask(tool, {name: plain(value) for name, value in arguments.items()})
        if answer.get("status") != "success":
            raise ToolError(
                tool, str(answer.get("status")), str(answer.get("error") or "no reason was given")
            )
        output: Message = answer.get("output") or {}
        return output

    def _read(self, path: str) -> str:
        """Return a whole file, however long: a result is cut where it is too long, and what is cut
        is asked for again.
        """
        parts: list[str] = []
        start, lines, total = 1, _LINES, 1
        while start <= total:
            part = self._call("files.read", {"path": path, "start": start, "lines": lines})
            content, total = str(part["content"]), int(part["total_lines"])
            wanted = min(lines, total - start + 1)
            last = start + wanted > total
            if total and not _whole(
                content, wanted, ended=not part.get("truncated") if last else content.endswith("\n")
            ):
                if lines == 1:
                    raise ToolError(
                        "ws.read", "output", f"line {start} of {path} is too long to be read whole"
                    )
                lines //= 2
                continue
            parts.append(content)
            start += wanted
        return "".join(parts)

    def _write(self, path: str, content: str) -> None:
        self._call("files.write", {"path": path, "content": content})

    def _glob(self, pattern: str) -> list[str]:
        return [
            path
            for path in self._call("files.list", {"glob": pattern})["entries"]
            if not path.endswith("/")
        ]

    def _run(self, prompts: Any, tools: Any = None) -> Any:
        single = isinstance(prompts, str)
        narrower = {} if tools is None else {"tools": list(tools)}
        answers = self._call(
            "agents.run", {"prompts": [prompts] if single else list(prompts), **narrower}
        )["answers"]
        return answers[0] if single else answers


def _attribute(name: str) -> str:
    """Return the rest of a tool's name as Python can say it: `mcp.notes.add-line` is
    `mcp.notes_add_line`.
    """
    return "".join(sign if sign.isalnum() else "_" for sign in name)


def _whole(content: str, rows: int, *, ended: bool) -> bool:
    """Whether a result holds so many lines, and nothing of them was left out on its way."""
    return (
        ended
        and _LEFT_OUT not in content
        and content.count("\n") + (not content.endswith("\n")) == rows
    )


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Return a value as JSON knows it; what JSON does not know is shown as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else _show(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)  # noqa: PLR0124 - NaN is no JSON
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
