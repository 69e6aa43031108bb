"""Examples in a function's docstring: found, and run on a seat's change."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.checks import CallContext
from moothall.authorization.rules import grant_for
from moothall.deliberation.attempt import FUNCTION_BREAKS_EXAMPLES, FUNCTION_FAILS
from moothall.deliberation.function_writing import find_broken_examples, read_docstring_examples
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, TaskKey
from support.council import ONE, of, outcomes
from support.local import local
from support.repos import SAMPLE
from support.tool_gateway import in_seconds

DOCSTRING = "def sub(a, b=0):\n    '''Subtract.\n{}\n    '''\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    >>> sub(3, 1)\n    2", ("sub(3, 1)", "2")),
        ("    >>> sub(3, b=1)\n    2", ("sub(3, b=1)", "2")),
        ("    sub(3, 1) == 2", ("sub(3, 1)", "2")),
        ("    for sub(3, 1) == 2", ("sub(3, 1)", "2")),
        ("    * sub([1], 'a=b') ==> (1, 'x')", ("sub([1], 'a=b')", "(1, 'x')")),
        ("    sub(3, 1) ➞ 2", ("sub(3, 1)", "2")),
        ("    sub(3, 1)   # returns -2.5.", ("sub(3, 1)", "-2.5")),
        ("    sub(3, 1) => two", None),
        ("    sub(other(), 1) == 2", None),
        ("    add(3, 1) == 4", None),
        ("    >>> sub(3, 1) + 1\n    3", None),
        ("    >>>sub(3, 1)\n    2", None),
    ],
)
def test_the_examples_of_a_docstring_are_read(line: str, expected: tuple[str, str] | None) -> None:
    assert read_docstring_examples(DOCSTRING.format(line), "sub") == (
        (expected,) if expected else ()
    )


@pytest.mark.parametrize(
    "text",
    ["def sub(:", "", "x = 1", "def sub(a):\n    return a\n", "class A:\n  '''sub(1) == 2'''\n"],
)
def test_text_without_examples_has_no_examples(text: str) -> None:
    assert read_docstring_examples(text, "sub") == ()


@given(st.text(max_size=200))
def test_only_calls_with_literals_are_read_from_any_docstring(text: str) -> None:
    lines = f"    >>> sub({text})\n    {text}\n    sub({text}) == {text}".replace("'''", "")
    for call, value in read_docstring_examples(DOCSTRING.format(lines.replace("\\", "")), "sub"):
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call)
        assert ast.unparse(node.func) == "sub"
        for item in node.args:
            ast.literal_eval(item)
        ast.literal_eval(value)


def test_docstring_examples_are_bounded() -> None:
    many_examples = "\n".join(f"    sub({number}) == {number}" for number in range(100))
    assert len(read_docstring_examples(DOCSTRING.format(many_examples), "sub")) == 20
    assert read_docstring_examples(DOCSTRING.format(f"    sub('{'a' * 1000}') == 1"), "sub") == ()


@pytest.mark.e2e  # a sandbox
async def test_failing_examples_are_reported(tmp_path: Path) -> None:
    files = {
        "lib/one.py": "X = 1\n",
        "lib/a.py": "from one import X\n\n\ndef sub(a, b=0):\n    return a - b * X\n",
        "b.py": "1 / 0\n",
    }
    examples = (
        ("sub(3, 1)", "2"),
        ("sub(3, 2)", "2"),
        ("sub(0.3, 0.1)", "0.2"),
        ("sub('a', 1)", "2"),
        ("sub(2)", "2.0"),
    )
    async with (
        local(tmp_path, files={**SAMPLE, **files}) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        seat = CallContext(
            LOCAL,
            TaskKey("t-1"),
            "s-1",
            "dev",
            grant_for("dev"),
            workspace,
            "one",
            in_seconds(60),
        )
        assert await find_broken_examples(examples, "lib/a.py", seat, 10) == (
            examples[1],
            examples[3],
        )
        # It cannot be imported: that proves nothing.
        assert await find_broken_examples(examples, "b.py", seat, 10) == ()
        assert await find_broken_examples((), "lib/a.py", seat, 10) == ()


@pytest.mark.e2e  # several runs of pytest
@pytest.mark.parametrize(
    ("bodies", "stuck", "wins"),
    [
        (("4", "x + x"), [FUNCTION_BREAKS_EXAMPLES, ""], "x + x"),
        (("4", "5"), [FUNCTION_BREAKS_EXAMPLES, FUNCTION_FAILS], "return 4"),
        (("x + x",), [""], "x + x"),
    ],
)
async def test_a_passing_function_that_breaks_docstring_examples_is_kept_and_retried(
    council: Any, bodies: tuple[str, ...], stuck: list[str], wins: str
) -> None:
    test = "from utils import twice\n\n\ndef test_a():\n    assert twice(2) == 4\n"
    stub = "def twice(x):\n    '''Double.\n    >>> twice(3)\n    6\n    '''\n"
    files = {**SAMPLE, "tests/test_utils.py": test, "src/utils.py": stub}
    answers = iter(f"```python\ndef twice(x):\n    return {body}\n```" for body in bodies)
    async with council(lambda _body, _headers: next(answers), files=files, functions="on") as app:
        events = await app.run(
            app.deliberation("single", 1, description="Complete twice in src/utils.py")
        )
    assert [turn["stuck"] for turn in of(events, EventType.SEAT_TURN)] == stuck
    assert outcomes(events) == {ONE: "proposed"}
    assert wins in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
