"""A task that names one function: detected, requested as such, its code block parsed; and whole
seats that work this way.
"""

from __future__ import annotations

from typing import Any

import pytest

from moothall.deliberation.context import SeatLimits
from moothall.deliberation.function_writing import find_function
from moothall.deliberation.prompts.repository_context import RepositoryContext
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply
from moothall.domain.event import EventType
from moothall.testing.model import step_of
from support.council import ONE, of, outcomes
from support.repos import SAMPLE, SOLUTION

PYTHON = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a\n"
GO = "package x\n\nfunc (c *Cart) Total() int {\n\treturn 0\n}\n"
SHOWN = RepositoryContext(
    (("tests/test_a.py", "assert sub(3, 1) == 2"),),
    (("a.py", PYTHON), ("cart.go", GO), ("notes.md", "def read():")),
    "a.py",
)
FILES = ("a.py", "cart.go", "notes.md", "tests/test_a.py")
TWO_TURNS = SeatLimits(function_turns=2)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("Complete the function sub in a.py", ("a.py", "sub")),
        ("sub() gives its first number back", ("a.py", "sub")),
        ("Total is always nought", ("cart.go", "Total")),
        ("Add hello_world() to a.py", ("a.py", "hello_world")),
        ("Add hello_world(name) to a.py and cart.go", None),
        ("Add hello_world() somewhere", None),
        ("sub and add are both wrong", None),
        ("Make read() work", None),
        ("Tidy up a.py", None),
    ],
)
def test_the_one_function_named_by_a_task_is_found(
    task: str, expected: tuple[str, str] | None
) -> None:
    function = find_function(task, SHOWN, FILES)
    assert (function and (function.path, function.name)) == expected


def test_the_prompt_shows_only_the_function_its_file_its_failing_test_and_the_task() -> None:
    function = find_function("Complete sub", SHOWN, FILES)
    assert function is not None
    prompt = function.full_prompt.head[-1].content
    assert "assert sub(3, 1) == 2" in prompt
    assert PYTHON.strip() in prompt
    assert "func (c" not in prompt


def reply(text: str, finish_reason: str = "stop") -> ChatReply:
    return ChatReply(text, finish_reason, Usage())


@pytest.mark.parametrize(
    "template",
    [
        "```python\n{}\n```",
        "Sure!\n```python\n{}\n```\nIt subtracts.",
        "{}",
        "```\n{}",
        "```python\nsub(1, 2)\n```\n```python\n{}\n```",
    ],
)
def test_the_code_block_of_a_reply_becomes_the_call_that_replaces_the_function(
    template: str,
) -> None:
    function = find_function("Complete sub", SHOWN, FILES)
    assert function is not None
    code = "import math\n\ndef sub(a, b):\n    return a - b"
    (action,) = function.read_reply(reply(template.format(code)), function.full_prompt).actions
    assert action.tool == "files.define"
    assert dict(action.arguments) == {"path": "a.py", "name": "sub", "content": code}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would subtract.",
        "```python\ndef other():\n    pass\n```",
        "```python\nsub(1, 2)\n```",
    ],
)
def test_a_reply_without_the_function_is_malformed(text: str) -> None:
    function = find_function("Complete sub", SHOWN, FILES)
    assert function is not None
    with pytest.raises(MalformedReplyError, match="whole function sub"):
        function.read_reply(reply(text), function.full_prompt)
    with pytest.raises(MalformedReplyError, match="cut off"):
        function.read_reply(reply("```python\ndef sub(", "length"), function.full_prompt)


WRONG = '```python\ndef hello_world() -> str:\n    return "Goodbye"\n```'
RIGHT = f"```python\n{SOLUTION.strip()}\n```"


@pytest.mark.e2e  # executors that run tests
async def test_a_seat_is_asked_for_the_function_and_asked_again_after_a_failure(
    council: Any,
) -> None:
    def answer(_body: Any, headers: Any) -> str:
        return WRONG if step_of(headers) == "0.1" else RIGHT

    async with council(answer, functions="on") as app:
        events = await app.run(app.deliberation("single", 1))
    first, second = app.server.requests
    assert "response_format" not in first.body
    assert "files.append" not in first.prompt
    assert second.prompt == first.prompt
    assert second.body["temperature"] > first.body["temperature"]
    assert [turn["stuck"] for turn in of(events, EventType.SEAT_TURN)] == [
        "the function did not pass",
        "",
    ]
    assert outcomes(events) == {ONE: "proposed"}


@pytest.mark.e2e  # executors that run tests
async def test_a_seat_with_more_turns_gets_its_test_results(council: Any) -> None:
    def answer(_body: Any, headers: Any) -> str:
        return WRONG if step_of(headers) == "0.1" else RIGHT

    async with council(answer, functions="on", seat_limits=TWO_TURNS) as app:
        events = await app.run(app.deliberation("single", 1))
    first, second = app.server.requests
    assert "response_format" not in first.body
    assert "files.append" not in first.prompt
    assert "in one code block" in first.prompt
    assert "Goodbye" in second.prompt
    assert "again, mended" in second.prompt
    assert outcomes(events) == {ONE: "proposed"}
    diff = of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
    assert "Hello, World!" in diff
    assert "Goodbye" not in diff


@pytest.mark.e2e  # several runs of pytest
@pytest.mark.parametrize(
    ("turns", "maxima", "attempts"),
    [(1, (3, 2), [1, 2]), (1, (1, 2), [1]), (1, (3, 3), [1, 2, 3]), (2, (3, 2), [1, 1, 2, 2])],
)
async def test_each_attempt_requests_the_function_a_limited_number_of_times(
    council: Any, turns: int, maxima: tuple[int, int], attempts: list[int]
) -> None:
    answers = iter(
        f'```python\ndef hello_world() -> str:\n    return "{number}"\n```' for number in range(9)
    )
    limits, own_limit = maxima

    async with council(
        lambda _body, _headers: next(answers),
        functions="on",
        seat_limits=SeatLimits(limits, own_limit, turns),
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    turn_events = of(events, EventType.SEAT_TURN)
    assert [turn["attempt"] for turn in turn_events] == attempts
    assert {turn["attempts"] for turn in turn_events} == {attempts[-1]}
    assert not any("response_format" in call.body for call in app.server.requests)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("tests", "assertions_only"),
    [
        (
            (
                "import math\nfrom a import sub\n\n\ndef test_a() -> None:\n    assert sub(3, 1) "
                "== "
                "2\n\n\ndef test_b():\n    assert sub(0, 0) == 0\n"
            ),
            True,
        ),
        ("def test_a():\n    x = 3\n    assert sub(x, 1) == 2\n", False),
        ("def test_a(tmp_path):\n    assert sub(3, 1) == 2\n", False),
        ("def test_a():\n    assert sub(\n        3, 1) == 2\n", False),
        ("@pytest.mark.slow\ndef test_a():\n    assert sub(3, 1) == 2\n", False),
        ("", False),
    ],
)
def test_only_the_assertions_are_shown_of_tests_that_only_assert(
    tests: str,
    assertions_only: bool,  # noqa: FBT001 - a table's column
) -> None:
    function = find_function(
        "Complete sub",
        RepositoryContext((("tests/test_a.py", tests),), (("a.py", PYTHON),), "a.py"),
        FILES,
    )
    assert function is not None
    prompt = function.full_prompt.head[-1].content
    assert ("# tests/test_a.py must pass:\nassert sub(3, 1) == 2" in prompt) == assertions_only
    assert ("def test_" in prompt) == (bool(tests) and not assertions_only)


def test_an_import_of_the_functions_own_file_is_removed() -> None:
    """A small model copies the import from the test."""
    function = find_function("Complete sub", SHOWN, FILES)
    assert function is not None
    code = "def sub(a, b):\n    return a - b"
    for line in (
        "from a import sub\n\n",
        "from src.a import sub, add\n",
        "from .a import *\n",
        "import a\n",
    ):
        (action,) = function.read_reply(
            reply(f"```python\nimport math\n{line}{code}\n```"), function.full_prompt
        ).actions
        assert action.arguments["content"] == f"import math\n{code}"
    full_file = f"from abc import sub\nimport ab\n{code}"
    (action,) = function.read_reply(reply(full_file), function.full_prompt).actions
    assert action.arguments["content"] == full_file


@pytest.mark.e2e  # executors that run tests
async def test_an_unchanged_function_is_reported_and_then_retried(
    council: Any,
) -> None:
    """The small model copied the signature and the docstring, without a body."""
    stub = 'def hello_world() -> str:\n    """Return the greeting."""\n'
    files = {**SAMPLE, "src/utils.py": f"{SAMPLE['src/utils.py']}\n\n{stub}"}
    empty = f"```python\n{stub}```"

    def answer(_body: Any, headers: Any) -> str:
        return RIGHT if step_of(headers) == "0.3" else empty

    async with council(answer, files=files, functions="on", seat_limits=TWO_TURNS) as app:
        events = await app.run(app.deliberation("single", 1))
    assert "as it stood before" in app.server.requests[1].prompt
    assert "files.define" not in app.server.requests[1].prompt
    assert [turn["stuck"] for turn in of(events, EventType.SEAT_TURN)] == [
        "",
        "the function did not pass",
        "",
    ]
    assert app.server.requests[2].body["temperature"] > app.server.requests[1].body["temperature"]


@pytest.mark.e2e  # several runs of pytest
async def test_a_function_that_passes_half_of_its_tests_is_not_done(council: Any) -> None:
    tests = {
        "tests/test_utils.py": (
            "from utils import twice\n\n\ndef test_a():\n    assert twice(2) == 4\n\n\ndef "
            "test_b():\n    assert twice(3) == 6\n"
        )
    }
    half = "```python\ndef twice(x):\n    return 4\n```"
    right = "```python\ndef twice(x):\n    return x + x\n```"

    def answer(_body: Any, headers: Any) -> str:
        return half if step_of(headers) == "0.1" else right

    files = {**SAMPLE, **tests, "src/utils.py": "def twice(x):\n    return None\n"}
    async with council(answer, files=files, functions="on", seat_limits=TWO_TURNS) as app:
        events = await app.run(
            app.deliberation("single", 1, description="Mend twice in src/utils.py")
        )
    assert "These still fail: tests/test_utils.py::test_b" in app.server.requests[1].prompt
    assert len(of(events, EventType.SEAT_TURN)) == 2
    assert "x + x" in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]


@pytest.mark.e2e  # executors that run tests
@pytest.mark.parametrize(("lines", "max_tokens"), [(3, 512), (400, 1024)])
async def test_a_reply_is_bounded_by_the_setting_or_by_the_size_of_the_file(
    council: Any, lines: int, max_tokens: int
) -> None:
    files = {
        **SAMPLE,
        "src/utils.py": "".join(f"NUMBER_{number} = {number}\n" for number in range(lines)),
    }

    async with council(lambda _body, _headers: RIGHT, files=files, functions="on") as app:
        await app.run(app.deliberation("single", 1))
    assert app.server.requests[0].body["max_tokens"] == max_tokens


STUB = 'import math\n\n\n@cache\ndef half(a):\n    """Halve.\n    >>> half(4)\n    2\n    """\n'


@pytest.mark.parametrize(
    ("text", "is_completed"),
    [
        (STUB, STUB.removeprefix("import math\n\n\n").rstrip()),
        (
            STUB.replace("    ", "\t"),
            STUB.removeprefix("import math\n\n\n").rstrip().replace("    ", "\t"),
        ),
        (f"{STUB}    return a\n", ""),
        (f"{STUB}\n\nX = 1\n", ""),
        ("def half(a): 'Halve.'\n", ""),
        ("def half(a):\n    pass\n", ""),
        ("def half(a):\n", ""),
        ("def half(:", ""),
    ],
)
def test_the_reply_is_prefilled_for_a_bodiless_function_at_the_end_of_its_file(
    text: str, is_completed: str
) -> None:
    function = find_function(
        "Complete half",
        RepositoryContext(
            (("tests/t.py", "def test_a():\n    assert half(2) == 1\n"),), (("b.py", text),), ""
        ),
        (),
    )
    ways = function.completions if function else ()
    assert len(ways) == (2 if is_completed else 0)
    for completion, step in zip(ways, ("\t# 1." if "\t" in text else "    # 1.", ""), strict=False):
        *_, user, reply_begun = completion.head
        assert ("assert half(2) == 1" in user.content) == (">>>" not in text)
        assert text.strip() not in user.content
        assert ("steps" in user.content) == bool(step)
        assert reply_begun.role == "assistant"
        assert reply_begun.content == f"```python\n{text}{step}"
        assert completion.prefix == f"{is_completed}\n{step}"


def test_examples_of_the_docstring_are_not_repeated_as_assertions() -> None:
    tests = "def test_a():\n    assert half( 4)==2\n\n\ndef test_b():\n    assert half(2) == 1\n"
    function = find_function(
        "Complete half", RepositoryContext((("tests/t.py", tests),), (("b.py", STUB),), ""), ()
    )
    assert function is not None
    prompt = function.full_prompt.head[1].content
    assert f"```python\n{STUB.rstrip()}\n```" in prompt
    assert "assert" not in prompt
    assert "assert half(2) == 1" not in "".join(
        message.content for completion in function.completions for message in completion.head
    )
    with_body = find_function(
        "Complete half",
        RepositoryContext((("tests/t.py", tests),), (("b.py", f"{STUB}    return a\n"),), ""),
        (),
    )
    assert with_body is not None
    prompt = with_body.full_prompt.head[1].content
    assert "assert half(2) == 1" in prompt
    assert "half( 4)" not in prompt


@pytest.mark.parametrize(
    "text",
    [
        "    return a // 2\n```",
        " Halve.\n    return a // 2\n```",
        "    return a // 2\n```\nThis halves. For example:\n```python\ndef half(a): pass\n```",
        "\n    return a // 2",
        "```python\n@cache\ndef half(a):\n    return a // 2\n```",
        "Here it is:\n```python\n@cache\ndef half(a):\n    return a // 2\n```",
    ],
)
def test_a_reply_continues_the_prefilled_function_or_repeats_the_whole(text: str) -> None:
    function = find_function("Complete half", RepositoryContext((), (("b.py", STUB),), ""), ())
    assert function is not None
    planned, plain = function.completions
    for completion in (
        (planned,)
        if text.startswith(" Halve")
        else (plain,)
        if text.startswith("    ")
        else (planned, plain)
    ):
        (action,) = function.read_reply(reply(text), completion).actions
        content = action.arguments["content"]
        assert content.startswith("@cache\ndef half(a):\n")
        assert content.endswith("    return a // 2")
        assert content.count("def half") == 1
    with pytest.raises(MalformedReplyError):
        function.read_reply(reply("    return a // 2"), function.full_prompt)


@pytest.mark.parametrize("text", ["I would halve it.", "```python\nhalf(4)\n```", ""])
def test_prose_is_not_a_continuation_of_the_prefilled_function(text: str) -> None:
    function = find_function("Complete half", RepositoryContext((), (("b.py", STUB),), ""), ())
    assert function is not None
    for completion in function.completions:
        with pytest.raises(MalformedReplyError, match="whole function half"):
            function.read_reply(reply(text), completion)


BODILESS = {
    **SAMPLE,
    "src/utils.py": (
        f'{SAMPLE["src/utils.py"]}\n\ndef hello_world() -> str:\n    """Return the greeting."""\n'
    ),
}


def attempt_kind(body: Any) -> str:
    """Return the kind of attempt that a request makes."""
    last = body["messages"][-1]
    if last["role"] == "user":
        return "whole"
    return "plan" if last["content"].endswith("# 1.") else "body"


@pytest.mark.e2e
async def test_attempts_alternate_between_the_whole_function_a_plan_and_its_body(
    council: Any,
) -> None:
    replies = {
        "0.1": WRONG,
        "0.2": ' Greet.\n    return "Hi"\n```',
        "0.3": '    return "Hello, World!"\n```',
    }

    async with council(
        lambda _body, headers: replies[step_of(headers)],
        files=BODILESS,
        functions="on",
        seat_limits=SeatLimits(function_attempts=3),
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    assert [attempt_kind(call.body) for call in app.server.requests] == ["whole", "plan", "body"]
    diff = of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
    assert '+    return "Hello, World!"' in diff


@pytest.mark.e2e
async def test_a_plan_in_comments_stays_in_the_function(council: Any) -> None:
    replies = {"whole": WRONG, "plan": ' Greet.\n    return "Hello, World!"\n```'}

    async with council(
        lambda body, _headers: replies[attempt_kind(body)], files=BODILESS, functions="on"
    ) as app:
        events = await app.run(app.deliberation("single", 1))
    assert (
        '+    # 1. Greet.\n+    return "Hello, World!"'
        in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]
    )


@pytest.mark.e2e  # several runs of pytest
async def test_each_seat_of_a_council_begins_with_a_different_kind_of_attempt(council: Any) -> None:
    async with council(
        lambda _body, _headers: WRONG,
        files=BODILESS,
        functions="on",
        seat_limits=SeatLimits(attempts=1),
    ) as app:
        await app.run(app.deliberation("tests_then_verify", 3))
    first = [attempt_kind(call.body) for call in app.server.requests if "/propose/" in call.call_id]
    assert sorted(first) == ["body", "plan", "whole"]
