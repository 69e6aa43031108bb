"""Examples in the docstring of a function: evidence besides the tests, if these pass and are few.

Only calls with literal arguments and results are read, and they run in a sandbox of the seat's own
workspace. The examples may be wrong, so a function that breaks them is kept if no better one
follows.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moothall import telemetry
from moothall.authorization.call_context import CallContext
from moothall.domain.code import CodeBlock
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.errors import NotFound

Example = tuple[str, str]
"""A call and its result, both as Python source."""

_MAX_EXAMPLES, _MAX_CALL_CHARS = 20, 500
_RESULT_MARK = re.compile(r"\s*(?:#\s*)?(?:==+>?|=>|-+>|➞|=|[Rr]eturns|should return)\s*")
_LINE_PREFIX = re.compile(r"^[\s#*>]*(?:for\s+)?")
_CHECK_SCRIPT = """
import ast, runpy, sys
sys.path[:0] = [path.rpartition("/")[0] or ".", "."]
names = runpy.run_path(path)
def holds(call, said):
    try:
        value, said = eval(call, names), ast.literal_eval(said)
        return bool(value == said) or (isinstance(said, float) and abs(value - said) < 1e-6)
    except Exception:
        return False
[holds(*example) for example in examples]
"""


def read_docstring_examples(text: str, name: str) -> tuple[Example, ...]:
    """Return up to 20 examples from the docstring of `name` in a Python file; () if it cannot be
    parsed.
    """
    try:
        nodes = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    docstring = (ast.get_docstring(nodes[0]) or "") if len(nodes) == 1 else ""
    examples = dict.fromkeys(
        example
        for example in _find_pairs(docstring, name)
        if _is_call(example[0], name) and _is_literal(example[1])
    )
    return tuple(examples)[:_MAX_EXAMPLES]


def _find_pairs(docstring: str, name: str) -> Iterator[Example]:
    try:
        for example in doctest.DocTestParser().get_examples(docstring):
            yield example.source.strip(), example.want.strip()
    except ValueError:
        pass  # a doctest prompt without the space after it
    for line in docstring.splitlines():
        text = _LINE_PREFIX.sub("", line[:_MAX_CALL_CHARS])
        if text.startswith(f"{name}("):
            for mark in _RESULT_MARK.finditer(text):
                yield text[: mark.start()].strip(), text[mark.end() :].strip().rstrip(".")


def _is_call(text: str, name: str) -> bool:
    try:
        call = ast.parse(text, mode="eval").body
        if len(text) > _MAX_CALL_CHARS or not (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
        ):
            return False
        return all(
            _is_literal(ast.unparse(item))
            for item in (*call.args, *(keyword.value for keyword in call.keywords))
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return len(text) <= _MAX_CALL_CHARS


async def find_broken_examples(
    examples: Sequence[Example], path: str, context: CallContext, max_seconds: float
) -> tuple[Example, ...]:
    """Return the examples that do not hold for the function in `path` of the workspace; () if they
    cannot be run.

    Raises the errors of the workspace.
    """
    if not examples:
        return ()
    block = CodeBlock(
        _CHECK_SCRIPT,
        {},
        context.deadline,
        context.tenant,
        inputs={"path": path, "examples": [list(item) for item in examples]},
        seconds=max_seconds,
    )
    with telemetry.span("examples", {"moothall.workspace": context.workspace_id}):
        result = await context.workspace.run_code(block, _refuse_tool)
    verdicts = (
        result.value
        if result.status is ToolStatus.SUCCESS and isinstance(result.value, list)
        else []
    )
    return tuple(
        example for example, holds in zip(examples, verdicts, strict=False) if holds is False
    )


async def _refuse_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    del arguments
    raise NotFound(f"there is no tool {name[:40]!r} here")
