from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.rules import grant_for
from moothall.deliberation.conversation import Exchange, fit_to_window
from moothall.deliberation.prompts import prompts
from moothall.deliberation.prompts.excerpts import (
    CodePassage,
    RepoMap,
    RepoMapRequest,
    find_failing_cases,
)
from moothall.deliberation.prompts.reply import read_turn
from moothall.deliberation.prompts.repository_context import (
    RepositoryContext,
    failing_files,
    named_files,
    select_context,
)
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, Message
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import ROLES
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.task import Constraints, Deliberation
from moothall.domain.text import clip, fence, tokens
from moothall.errors import NotFound
from moothall.tools.catalogue import list_tools

SPECS = list_tools(grant_for("dev"), core=True)


def deliberation(**fields: Any) -> Deliberation:
    values: dict[str, Any] = {
        "task_id": "t",
        "description": "Add f() to a.py",
        "role": "dev",
        "protocol": "vote",
        "seats": ("agent-dev-001",),
    }
    return Deliberation(
        **(
            {**values, "rounds": 0, "deadline": datetime(2030, 1, 1, tzinfo=UTC), "max_turns": 3}
            | fields
        )
    )


@pytest.mark.parametrize("mode", ["json", "blocks"])
def test_system_and_tools_are_short_enough_for_a_small_model(mode: Any) -> None:
    for role in ROLES:
        assert len(prompts.system_text(list_tools(grant_for(role), core=True), mode)) / 3.5 < 900


OWN = CodePassage("src/a.py", "A.f", 3, "def f(self):\n    return self.x")


@pytest.mark.parametrize("mode", ["json", "blocks"])
@pytest.mark.parametrize(("span", "tool"), [(None, "files.append"), (OWN, "files.define")])
def test_the_worked_example_is_itself_a_turn(
    mode: Any, span: CodePassage | None, tool: str
) -> None:
    system = prompts.system_text(SPECS, mode, example=span)
    example = system.split("A good reply:\n")[1].split("\nThe tests passed then")[0]
    finish = system.split("the last reply was:\n")[1]
    turn = read_turn(ChatReply(example, "stop", Usage()), mode)
    assert turn.actions == prompts.example_of(RepositoryContext((), (), "", example=span))
    assert turn.actions[0].tool == tool
    compile(turn.actions[0].arguments["content"], "src/text.py", "exec")
    assert read_turn(ChatReply(finish, "stop", Usage()), mode).finish
    assert not any(mark in example for mark in ("<path>", "<content>", "TODO", "your_"))


@pytest.mark.parametrize("mode", ["json", "blocks"])
@pytest.mark.parametrize(("span", "file"), [(None, "src/maths.py"), (OWN, "src/a.py")])
def test_the_example_answer_uses_a_file_of_the_repository_and_two_turns(
    mode: Any, span: CodePassage | None, file: str
) -> None:
    example = prompts.example_of(RepositoryContext((), (), "", example=span))
    prompt = prompts.seat_prompt(
        "S", "shared", "dev", "", about_text=False, answer_mode=mode, example=example
    )[-1].content
    assert file in prompt
    assert ("maths" in prompt) == (span is None)
    example_turn, end = (
        prompt.split("these two:\n")[1].split("\nNow do the task.")[0].rsplit("\n", 1)
    )
    assert [
        action.tool for action in read_turn(ChatReply(example_turn, "stop", Usage()), mode).actions
    ] in (
        ["files.read"],
        ["files.search"],
    )
    assert read_turn(ChatReply(end, "stop", Usage()), mode).finish


def test_a_council_about_text_has_no_example_to_copy() -> None:
    assert prompts.example_of(None) == ()


def test_the_seat_specific_part_comes_last() -> None:
    shared = prompts.shared_text(
        deliberation(), RepositoryContext((("tests/test_a.py", "T"),), (("a.py", "A"),), "a.py")
    )
    dev_prompt = prompts.seat_prompt("S", shared, "dev", "one way", about_text=False)
    qa_prompt = prompts.seat_prompt("S", shared, "qa", "another", about_text=False)
    assert dev_prompt[0] == qa_prompt[0]
    assert dev_prompt[1].content.startswith(shared)
    assert qa_prompt[1].content.startswith(shared)
    assert shared.index("tests/test_a.py") < shared.index("a.py [")


def test_requirements_and_rubric_are_shown_and_judged() -> None:
    d = deliberation(
        constraints=Constraints(rubric="short", requirements=("has a test", "is typed"))
    )
    assert prompts.criteria(d.constraints) == ("has a test", "is typed", "short")
    assert "2. is typed" in prompts.shared_text(d, None)
    assert prompts.criteria(Constraints()) == ("It does what the task asks.",)


@given(st.text(), st.text())
def test_no_text_closes_its_own_fence(label: str, text: str) -> None:
    lines = fence(label, text).split("\n")
    end = lines[-1]
    assert end.startswith("--- end [")
    assert end.removeprefix("--- end [").removesuffix("] ---") not in text
    assert fence(label, text) == fence(label, text)


def test_a_text_that_ends_like_a_fence_gets_a_different_marker() -> None:
    inner = fence("x", "harmless")
    assert fence("x", inner).split("\n")[-1] not in inner


@given(st.text(), st.integers(1, 50))
def test_clipped_text_is_bounded_and_short_text_untouched(text: str, limit: int) -> None:
    cut = clip(text, limit)
    assert cut == text if len(text) <= limit else len(cut) <= limit + 50


async def test_a_repo_map_adds_the_code_of_frames_and_definitions_and_a_map() -> None:
    ready = prepared_with(**{"tests/test_money.py::test_pay": "failed"})
    run = ready.runs["tests"]
    ready = replace(
        ready,
        runs={
            "tests": replace(
                run, details={"tests/test_money.py::test_pay": "src/pkg/money.py:1: ValueError"}
            )
        },
    )
    requests: list[RepoMapRequest] = []

    async def survey(order: RepoMapRequest) -> RepoMap:
        requests.append(order)
        spans = (
            CodePassage("src/pkg/money.py", "pay", 1, "def pay(): ..."),
            CodePassage("tests/test_money.py", "test_pay", 5, "def test_pay(): ..."),
        )
        return RepoMap(
            spans, ("lib/cart.js",), "lib/x.py:\n  def far()\nsrc/pkg/money.py:\n  def pay()\n", OWN
        )

    context = await select_context(ready, "Mend pay", read_file, 2000, survey)
    (order,) = requests
    assert order.frames == (("src/pkg/money.py", 1),)
    assert order.tests == (("tests/test_money.py", "test_pay"),)
    assert order.paths == ("tests/test_money.py", "src/pkg/money.py", "src/pkg/other.py")
    assert {"pay", "Mend", "ValueError"} <= set(order.words)
    assert context.cases == (("tests/test_money.py::test_pay", "src/pkg/money.py:1: ValueError"),)
    assert context.code == (("src/pkg/money.py, line 1", "def pay(): ..."),)
    assert [path for path, _ in context.files] == [
        "src/pkg/money.py",
        "src/pkg/other.py",
        "lib/cart.js",
    ]
    assert context.map == "lib/x.py:\n  def far()"  # without the files shown in full
    assert context.example == OWN
    text = prompts.shared_text(deliberation(), context)
    order_of = [
        text.index(part)
        for part in (
            "test_pay fails now",
            "a test that fails now",
            "which the failing tests run",
            "money.py [",
            "map of",
        )
    ]
    assert order_of == sorted(order_of)


async def test_many_failing_cases_are_named_and_counted() -> None:
    run = CheckRun(
        "tests", Verdict.FAILED, {f"tests/test_money.py::test_{n}": "failed" for n in range(50)}
    )
    ready = Prepared(
        Base("r", "0" * 40, Profile(known_failures=("tests/test_money.py::test_0",))),
        "k",
        tuple(sorted(FILES)),
        {"tests": run},
    )
    context = await select_context(ready, "Mend", read_file, 4000)
    assert context.cases[0] == ("tests/test_money.py::test_1", "")
    assert context.cases[-1] == ("… and 29 more", "")


async def test_a_case_that_fails_like_another_is_named_without_its_output() -> None:
    ready = prepared_with(**{f"tests/test_money.py::test_{name}": "failed" for name in "abc"})
    run = ready.runs["tests"]
    details = {
        case: f"src/pkg/money.py:1: in pay\nE   {'KeyError' if case.endswith('c') else 'TypeError'}"
        for case in run.cases
    }
    context = await select_context(
        replace(ready, runs={"tests": replace(run, details=details)}), "Mend", read_file, 4000
    )
    assert [(case[-1], bool(text)) for case, text in context.cases] == [
        ("a", True),
        ("c", True),
        ("b", False),
    ]


async def test_the_output_of_an_advisory_check_is_not_shown() -> None:
    ready = prepared_with(**{"tests/test_money.py::test_pay": "failed"})
    lint = CheckRun("lint", Verdict.FAILED, output="src/pkg/money.py:1:1: D100 missing docstring")
    base = replace(ready.base, profile=replace(ready.base.profile, advisory=("lint",)))
    context = await select_context(
        replace(ready, base=base, runs={**ready.runs, "lint": lint}), "Mend", read_file, 4000
    )
    assert [case for case, _ in context.cases] == ["tests/test_money.py::test_pay"]


def test_a_module_named_by_the_task_is_shown() -> None:
    assert list(named_files("mend pkg.money.pay, please.", sorted(FILES))) == ["src/pkg/money.py"]


FILES = {
    "README.md": "read me",
    "src/pkg/__init__.py": "",
    "src/pkg/money.py": "def pay(): ...",
    "src/pkg/other.py": "x = 1",
    "lib/cart.js": "exports.x = 1",
    "tests/test_money.py": (
        "from pkg.money import pay\nfrom pkg import other\n\n\ndef test_pay():\n    assert pay()\n"
    ),
    "tests/test_ok.py": "def test_ok():\n    assert True\n",
    "tests/cart.test.js": "const cart = require('../lib/cart')\n",
}


def prepared_with(**cases: str) -> Prepared:
    run = CheckRun(
        "tests", Verdict.FAILED, {key.replace("__", "::"): value for key, value in cases.items()}
    )
    return Prepared(Base("r", "0" * 40, Profile()), "k", tuple(sorted(FILES)), {"tests": run})


async def read_file(path: str) -> str:
    if path == "src/pkg/__init__.py":
        raise NotFound(path)
    return FILES[path]


async def test_failing_tests_come_first_then_their_imports() -> None:
    ready = prepared_with(
        **{"tests/test_money.py::test_pay": "failed", "tests/test_ok.py::test_ok": "passed"}
    )
    context = await select_context(ready, "Mend pay, see README.md", read_file, 2000)
    assert [path for path, _ in context.failing] == ["tests/test_money.py"]
    assert [path for path, _ in context.files] == [
        "README.md",
        "src/pkg/money.py",
        "src/pkg/other.py",
    ]
    assert context.listing.splitlines() == sorted(FILES)


@pytest.mark.parametrize(
    "case", ["tests/test_money.py", "tests/test_money.py::test_pay", "tests.test_money::test_pay"]
)
def test_a_failing_case_leads_to_its_file(case: str) -> None:
    ready = prepared_with()
    ready.runs["tests"].cases[case] = "errored"  # type: ignore[index] # a dict, here
    failing = find_failing_cases(ready.runs, ready.files, {})
    assert failing_files(failing, ready) == ["tests/test_money.py"]


async def test_files_are_found_in_the_output_of_a_runner_without_cases() -> None:
    run = CheckRun("tests", Verdict.FAILED, {}, "FAIL tests/cart.test.js\n  at lib/cart.js:3")
    ready = Prepared(Base("r", "0" * 40, Profile()), "k", tuple(sorted(FILES)), {"tests": run})
    context = await select_context(ready, "mend it", read_file, 2000)
    assert [path for path, _ in context.failing] == ["tests/cart.test.js"]
    assert [path for path, _ in context.files] == ["lib/cart.js"]


async def test_the_repositorys_instructions_are_shown_as_far_as_they_fit() -> None:
    async def with_guide(path: str) -> str:
        return (
            "Write British English.\n" + "and more\n" * 500
            if path == "AGENTS.md"
            else await read_file(path)
        )

    ready = prepared_with(**{"tests/test_money.py::test_pay": "failed"})
    ready = replace(ready, files=("AGENTS.md", *ready.files))
    context = await select_context(ready, "Mend pay", with_guide, 2000)
    assert context.guide.startswith("Write British English.\nand more\n")
    assert 150 < tokens(context.guide) <= 201
    text = prompts.shared_text(deliberation(), context)
    assert text.index("Write British") < text.index("a test that fails now")
    assert "AGENTS.md" not in prompts.shared_text(
        deliberation(), await select_context(prepared_with(), "Mend pay", read_file, 2000)
    )


@pytest.mark.parametrize("budget", [200, 400, 1000])
async def test_the_prompt_fits_the_budget(budget: int) -> None:
    async def long(path: str) -> str:
        return f"# {path}\n" * 5000

    ready = prepared_with(**{"tests/test_money.py::test_pay": "failed"})
    context = await select_context(ready, "see README.md", long, budget)
    assert context.failing
    total = tokens(context.listing) + sum(
        tokens(text) for _, text in (*context.failing, *context.files)
    )
    assert total <= budget * 1.25


HEAD = (Message("system", "s" * 320), Message("user", "u" * 320))


def turns(count: int, size: int) -> list[Exchange]:
    return [Exchange(f"said {n}", f"came {n} " + "x" * size, f"brief {n}") for n in range(count)]


def test_a_short_conversation_is_not_shortened() -> None:
    assert len(fit_to_window(HEAD, turns(3, 10), 4000)) == 8


def test_the_oldest_results_are_dropped_first_and_the_last_turns_stay() -> None:
    messages = fit_to_window(HEAD, turns(5, 1000), 1600)
    text = "\n".join(message.content for message in messages)
    assert messages[:2] == HEAD
    assert "(brief 0; the details were left out)" in text
    assert "came 3 xxx" in text
    assert "came 4 xxx" in text
    assert "said 0" in text


@given(st.integers(0, 12), st.integers(0, 3000), st.integers(400, 3000))
def test_a_conversation_fits_its_window(count: int, size: int, budget: int) -> None:
    messages = fit_to_window(HEAD, turns(count, size), budget)
    assert messages[:2] == HEAD
    assert [message.role for message in messages[2:]] == ["assistant", "user"] * (
        (len(messages) - 2) // 2
    )
    assert sum(tokens(message.content) for message in messages) <= max(budget, 620)
