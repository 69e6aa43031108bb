"""Syntax colours of diffs."""

from __future__ import annotations

import time

import pytest

from moothall.api.web.rendering import _LEXERS, highlight
from moothall.stories.diff_lines import DiffFile, read_files
from support.browsing import HOSTILE


def file_of(*lines: str, path: str = "a.py") -> DiffFile:
    count = len(lines)
    diff = (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,{count} +1,{count} @@\n"
    )
    [file] = read_files(diff + "".join(f"{line}\n" for line in lines))
    return file


def texts_of(file: DiffFile) -> list[str]:
    coloured = highlight(file)
    return [
        line.text[0] + "".join(text for _, text in coloured[number])
        for number, line in file.lines
        if line.kind != "place"
    ]


def test_each_side_of_a_diff_is_highlighted_as_its_own_text() -> None:
    lines = (' """Begins', '-ends."""', '+ends here."""', " x = 1")
    file = file_of(*lines)
    assert texts_of(file) == list(lines)
    coloured = highlight(file)
    numbers = [number for number, line in file.lines if line.kind != "place"]
    assert all(name == "hs" for number in numbers[:3] for name, text in coloured[number] if text)
    assert ("hn", "1") in coloured[numbers[3]], "after the text, there is code again"


@pytest.mark.parametrize("ending", sorted(_LEXERS))
def test_highlighting_loses_no_text_and_is_fast_in_every_language(ending: str) -> None:
    path = f"a{ending}" if ending.startswith(".") else ending
    hostile = [HOSTILE, "\t\r\f\v x", "", "'" * 399, '"\\' * 190, "(" * 399, "/*" * 190, "<" * 399]
    hostile += ["a" * 399, " " * 399, "{{%" * 130, "=" * 399, "#" * 399, "[" * 399, "x:" * 190]
    lines = [f"+{text}" for text in hostile * 3]
    start = time.perf_counter()
    file = file_of(*lines, path=path)
    assert texts_of(file) == lines
    assert time.perf_counter() - start < 5


def test_unknown_languages_and_oversized_files_have_no_colours() -> None:
    assert highlight(file_of("+x = 1", path="a.unknown")) == {}
    assert highlight(file_of(*["+x = 1 # " + "y" * 90] * 1100)) == {}
    [pieces] = highlight(file_of("+" + "x = 1;" * 100)).values()
    assert pieces == [("", "x = 1;" * 100)], "a long line"
