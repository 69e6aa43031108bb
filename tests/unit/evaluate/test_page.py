"""The page and the tables of a report: hostile text stays text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from moothall.domain.codec import dump
from moothall.evaluate.page import render
from moothall.evaluate.report import make_report, tables
from moothall.evaluate.tasks import Task

_HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"' \u202egnp.exe\x1b[31m \ud83d "
    "&amp;"
)


class _Elements(HTMLParser):
    """A parser that records the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _report(text: str) -> dict[str, Any]:
    task = Task("shop-1", text, "a" * 40, "b" * 40, text, {"tests": ("t::x",)}, "diff")
    candidate = {
        "seat": text,
        "rank": 1,
        "level": "reproduced",
        "solved": False,
        "failing": [text],
        "why": text,
    }
    row = {
        "task": "shop-1",
        "config": text,
        "winner": "agent-dev-001",
        "level": "reproduced",
        "solved": False,
        "tokens": 12,
        "calls": 3,
        "cost_usd": 0.0,
        "seconds": 1.5,
        "undecided": True,
        "candidates": [candidate],
        "state": text,
        "error": text,
    }
    unmeasured = {**row, "config": "other", "winner": "", "level": "", "candidates": []}
    return dump(make_report(Path("/evaluation"), [task], [row, unmeasured]))


def test_hostile_text_adds_no_element_and_no_attribute() -> None:
    plain, hostile = _Elements(), _Elements()
    plain.feed(render(_report("words")))
    page = render(_report(_HOSTILE))
    hostile.feed(page)
    assert "script" not in hostile.tags | plain.tags
    assert "img" not in hostile.tags
    assert (hostile.tags, hostile.attributes) == (plain.tags, plain.attributes)
    assert not {"\u202e", "\x1b", "\ud83d"} & {*page}
    assert "&lt;script&gt;alert(1)" in page


def test_a_tile_counts_the_winners_with_an_independent_level() -> None:
    assert "<b>1</b>winners proven or reproduced<" in render(_report("words"))


def test_the_page_loads_no_external_resources() -> None:
    page = render(_report("words"))
    assert "default-src 'none'" in page
    assert not {word for word in ("http:", "https:", "src=", "@import", "url(") if word in page}


def test_an_empty_report_has_a_page_and_tables() -> None:
    report = dump(make_report(Path("/evaluation"), [], []))
    assert "nothing yet" in render(report)
    assert [[row[1:] for row in rows if row[1:]] for _, _, rows in tables(report)] == [[], []]


def test_tables_contain_the_important_figures() -> None:
    (_, heads, figures), (_, _, tasks) = tables(_report("small"))
    assert heads == ("", "small", "other")
    named = {row[0]: row[1:] for row in figures}
    assert named["solved"] == ("0 of 1 (0 %, 0 to 79)", "0 of 1 (0 %, 0 to 79)")
    assert named["reproduced and wrong"] == ("1", "0")
    assert named["precision of reproduced"] == ("0 of 1 (0 %, 0 to 79)", "-")
    assert tasks == [("shop-1", "1", "wrong, reproduced", "no winner (small)")]


def test_results_of_other_tasks_and_runs_without_a_result_are_left_out() -> None:
    task = Task("shop-1", "/repo", "a" * 40, "b" * 40, "Fix it", {"tests": ("t::x",)}, "diff")
    rows: list[dict[str, Any]] = [
        {"task": "gone", "config": "small"},
        {"task": "shop-1", "config": "small", "broken": True},
    ]
    report = make_report(Path("/evaluation"), [task], rows)
    assert (report.results, report.configurations) == ((), ())
