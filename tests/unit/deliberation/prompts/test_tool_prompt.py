"""Prompts of a seat with native tools: words that cause an outline, folders, and unaltered
results.
"""

from __future__ import annotations

import pytest

from moothall.deliberation.prompts.tool_prompt import identifiers, list_folders, system_text
from moothall.deliberation.prompts.tool_results import result_text
from moothall.domain.tool import ToolResult, ToolStatus


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Fix chunked() when the input is empty", ("chunked",)),
        (">>> list(more_itertools.chunked('ABCDE', 3))", ("list", "more_itertools", "chunked")),
        ("Use `Op::Less`, and matches_less, not plain words", ("Op", "Less", "matches_less")),
        ("The end. Next `x` counts; größe() does too", ("x", "größe")),
        ("no names of code, a sentence. Another one", ("no", "names")),
        ("Parser.parse fails for items[0]", ("Parser", "parse", "items")),
    ],
)
def test_identifiers_marked_as_code_come_first(text: str, first: tuple[str, ...]) -> None:
    assert identifiers(text)[: len(first)] == first
    assert set(text.replace("`", " ").split()) & {"counts", "when", "Another"} <= set(
        identifiers(text)
    )


def test_files_of_small_source_folders_are_named_while_they_fit() -> None:
    files = [
        "Cargo.toml",
        "src/eval.rs",
        "src/lib.rs",
        "docs/a.md",
        *(f"data/{number}.rs" for number in range(13)),
    ]
    assert list_folders(files).split("\n") == [
        "Cargo.toml",
        "data/ (13 files)",
        "docs/ (1 file)",
        "src/ (2 files): eval.rs, lib.rs",
    ]
    paths = [f"pkg{number}/{'long' * 20}_{part}.py" for number in range(20) for part in range(5)]
    assert len(list_folders(paths)) <= 900


@pytest.mark.parametrize("alone", [True, False])
def test_a_single_seat_gets_no_text_about_others(alone: bool) -> None:  # noqa: FBT001 - the parameter
    text = system_text(shell=True, alone=alone)  # noqa: S604 - whether the seat has one
    assert ("Other engineers" in text, "the other candidates" in text) == (not alone, not alone)
    assert ("on the original code and on your change." in text) is alone


@pytest.mark.parametrize("status", [ToolStatus.SUCCESS, ToolStatus.ERROR])
def test_the_output_of_a_command_keeps_its_white_space(status: ToolStatus) -> None:
    output = {"output": "    indented\n  less  \n\n", "exit_code": 0}
    text = result_text(ToolResult("r", "code.shell", status, output, error="why"), 1000)
    assert text.removeprefix("error: why\n") == "    indented\n  less  \n[exit code 0]"
