"""A verdict as SARIF 2.1.0, which forges and editors show beside the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from moothall import __version__
from moothall.cli.text import plain
from moothall.cli.verdict import VerdictDocument
from moothall.cli.verdict_text import headline

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    "broken-test": "A test that passed on the base fails.",
    "failed-check": "A check of the repository fails.",
    "edited-test": "A test fails that the change edits or deletes.",
    "unnoticed": "No test fails without these lines.",
    "look": "A person should look at this line.",
    "review": "A review of the change.",
    "verdict": "The verdict on the change.",
}
_PLACE = re.compile(
    r"^(?P<path>[^:]+?)(?: \(new\)|:(?P<first>\d+)(?:-(?P<last>\d+))?)(?:: (?P<text>.*))?$"
)
_CASE_FILE = re.compile(r"^(?P<path>[\w./-]+\.\w+)(?:::| > |$)")
_MESSAGE_CHARS = 1_000


def sarif_document(verdict: VerdictDocument) -> str:
    """Return the findings of a verdict as a SARIF log."""
    level = {"passed": "note", "disputed": "warning"}.get(verdict.finding, "error")
    results = [_result("verdict", level, headline(verdict)), *findings(verdict)]
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "moothall judge",
                        "version": __version__,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": text}}
                            for rule, text in _RULES.items()
                        ],
                    }
                },
                "versionControlProvenance": [
                    {"repositoryUri": verdict.repository, "revisionId": verdict.head}
                ],
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def findings(verdict: VerdictDocument) -> Iterator[dict[str, Any]]:
    """Yield the findings of a verdict as results of SARIF."""
    broken = [
        row.case
        for row in verdict.matrix
        if row.base == "passed" and "failed" in row.results.values()
    ]
    for case in broken:
        rule, level = (
            ("edited-test", "warning") if case in verdict.edited_tests else ("broken-test", "error")
        )
        yield _result(rule, level, f"It passed on the base and fails: {case}", _place_of_case(case))
    for check in verdict.checks:
        if check.verdict != "passed" and verdict.finding == "broken" and not check.before:
            failures = ", ".join(check.new_failures[:5]) or check.why
            yield _result("failed-check", "error", f"{check.check} {check.verdict}: {failures}")
    for place in verdict.unnoticed:
        yield _result("unnoticed", "note", _RULES["unnoticed"], _place(place))
    for line in verdict.look:
        match = _PLACE.match(line)
        yield _result("look", "note", (match and match["text"]) or line, _place(line))
    for review in verdict.reviews:
        message = f"{review.reviewer} {review.score:.2f}: {review.comment}"
        yield _result("review", "note", message)


def _result(
    rule: str, level: str, message: str, place: dict[str, Any] | None = None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": rule,
        "level": level,
        "message": {"text": plain(message, _MESSAGE_CHARS)},
    }
    if place is not None:
        result["locations"] = [{"physicalLocation": place}]
    return result


def _place(text: str) -> dict[str, Any] | None:
    """Return the location in a line such as `src/a.py:3-7: text`; None if it names none."""
    match = _PLACE.match(text)
    if match is None:
        return None
    place: dict[str, Any] = {"artifactLocation": {"uri": match["path"]}}
    if match["first"]:
        place["region"] = {
            "startLine": int(match["first"]),
            "endLine": int(match["last"] or match["first"]),
        }
    return place


def _place_of_case(case: str) -> dict[str, Any] | None:
    match = _CASE_FILE.match(case)
    return {"artifactLocation": {"uri": match["path"]}} if match else None
