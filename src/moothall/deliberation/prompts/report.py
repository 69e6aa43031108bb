"""Texts for seats about the results of their tools and checks, cut to a share of the window."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from moothall.deliberation.local_checks import WorkspaceState
from moothall.deliberation.prompts.text import clip, fence
from moothall.domain.evidence import RED, CheckRun
from moothall.domain.tool import BlockRun, ToolResult, ToolStatus

_FOUND = 20  # findings of a linter that are shown


def result_text(number: int, result: ToolResult, max_chars: int) -> str:
    """Return the status of the turn's `number`-th call, and its error and output within
    `max_chars`.
    """
    error = result.error if result.status is not ToolStatus.SUCCESS else ""
    text = "\n".join(filter(None, (error, output_text(result.output))))
    head = f"{number}. {result.tool[:60]}: {result.status}"
    return f"{head}\n{fence('output', clip(text, max_chars))}" if text else head


_NAMED, _DETAILED = 10, 3  # red cases that are named, and those whose output is shown
_TIERS = {"monty": "", "python": "in CPython, since "}


def block_text(run: BlockRun, max_chars: int) -> str:
    """Return how a block of Python ended and where it ran; its output, value or error within
    `max_chars`.
    """
    where = f" ({_TIERS[run.tier]}{' '.join(run.why.split())[:200]})" if run.why else ""
    sections = {
        "printed": run.printed,
        "value": ""
        if run.value is None
        else json.dumps(run.value, ensure_ascii=False, default=str),
    }
    if run.status is not ToolStatus.SUCCESS:
        sections["error"] = run.error
    parts = [
        fence(name, clip(text, max_chars // 2)) for name, text in sections.items() if text.strip()
    ]
    return "\n".join([f"python: {run.status}{where}", *parts])


def output_text(output: Mapping[str, object]) -> str:
    """Return a file's text unchanged, and any other output as JSON."""
    if len(output) == 0:
        return ""
    texts = [value for value in output.values() if isinstance(value, str) and "\n" in value]
    if len(texts) == 1:
        rest = {key: value for key, value in output.items() if value is not texts[0]}
        return (
            f"{json.dumps(rest, ensure_ascii=False, default=str)}\n{texts[0]}" if rest else texts[0]
        )
    return json.dumps(output, ensure_ascii=False, default=str)


def check_text(run: CheckRun, base: CheckRun | None, max_chars: int) -> str:
    """Return a check's verdict and, if it failed, its failing cases with their output, within about
    `max_chars`. Cases that the change broke come before those that failed on the base.
    """
    counted = list(run.cases.values())
    numbers = f" ({counted.count('passed')} of {len(counted)} passed)" if counted else ""
    stopped = "" if run.status == "success" else f", stopped: {run.status}"
    head = f"Check {run.check}: {run.verdict}{numbers}{stopped}"
    red = [case for case, outcome in run.cases.items() if outcome in RED]
    before = [case for case in red if base is not None and base.cases.get(case) in RED]
    since = [case for case in red if case not in before]
    if not red and run.verdict == "passed":
        return head
    parts = [
        _cases_text(title, cases, run.details, max_chars // (1 + bool(since and before)))
        for title, cases in (
            ("Red since your change", since),
            ("Red before your change too", before),
        )
        if cases
    ]
    if new := [*(Counter(run.findings) - Counter(base.findings if base else ()))]:
        parts.append("\n".join(["Found now and not before:", *new[:_FOUND]]))
    if not any(case in run.details for case in red):
        parts.append(run.output)
    return f"{head}\n{fence(f'output of {run.check}', clip(chr(10).join(parts), max_chars))}"


def _cases_text(
    title: str, cases: Sequence[str], details: Mapping[str, str], max_chars: int
) -> str:
    """Name the cases, and show the output of the first few."""
    names = _name_some(cases)
    detailed = [case for case in cases if details.get(case, "").strip()][:_DETAILED]
    share = max(max_chars - len(names), 0) // max(len(detailed), 1)
    return "\n".join(
        [
            f"{title}: {names}",
            *(f"{case}:\n{clip(details[case].strip(), share)}" for case in detailed),
        ]
    )


def ignored_text(ignored: Mapping[str, str]) -> str:
    """Return a text that names the new files that git ignores, and what to do about them."""
    listed = "\n".join(f"{path}: {rule}" for path, rule in list(ignored.items())[:_NAMED])
    more = f"\nand {len(ignored) - _NAMED} more" if len(ignored) > _NAMED else ""
    way_out = (
        "Your checks see these files, but your answer leaves them out. Write them to another path, "
        "or change the rule."
    )
    return (
        f"{fence('new files that git ignores: they are left out of your answer', listed + more)}\n"
        f"{way_out}"
    )


def verdict_text(state: WorkspaceState) -> str:
    """Return what a seat may conclude from its checks, in one or two sentences."""
    if not state.passed:
        return "Repair this."
    if state.partly_fixed:
        return (
            f"{len(state.fixed)} of the tests that were red are green now, and beside them these "
            f"are red yet: {_name_some(state.still_failing)}. Repair those too."
        )
    where = (
        "All checks are green"
        if state.complete
        else "The cases near your change are green; the whole suite runs in the clean re-check"
    )
    if state.still_failing:
        where = (
            "Nothing is red that was not red before your change "
            f"({_name_some(state.still_failing)})"
        )
    return f"{where}. If the task is done, finish."


def _name_some(cases: Sequence[str]) -> str:
    return ", ".join(cases[:_NAMED]) + (
        f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    )
