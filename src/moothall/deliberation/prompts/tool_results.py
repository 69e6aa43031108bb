"""Texts for seats about the results of their tools and checks, cut to a share of the window: first
those for all seats, then those for seats with native tools.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.deliberation.local_checks import WorkspaceState, failing_cases
from moothall.domain.evidence import FAILED_OUTCOMES, CheckRun
from moothall.domain.repository import Prepared
from moothall.domain.text import clip, fence
from moothall.domain.tool import BlockRun, ToolResult, ToolStatus

_MAX_FINDINGS = 20  # findings of a linter that are shown


def numbered_result_text(number: int, result: ToolResult, max_chars: int) -> str:
    """Return the status of the turn's `number`-th call, and its error and output within
    `max_chars`.
    """
    error = result.error if result.status is not ToolStatus.SUCCESS else ""
    text = "\n".join(filter(None, (error, output_text(result.output))))
    head = f"{number}. {result.tool[:60]}: {result.status}"
    return f"{head}\n{fence('output', clip(text, max_chars))}" if text else head


_MAX_NAMES, _MAX_DETAILS = 10, 3  # failing cases that are named, and those whose output is shown
_TIERS = {"monty": "", "python": "in CPython, since "}


def block_text(run: BlockRun, max_chars: int) -> str:
    """Return how a block of Python ended and where it ran; its output, value or error within
    `max_chars`.
    """
    location = f" ({_TIERS[run.tier]}{' '.join(run.why.split())[:200]})" if run.why else ""
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
    return "\n".join([f"python: {run.status}{location}", *parts])


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
    outcomes = list(run.cases.values())
    numbers = f" ({outcomes.count('passed')} of {len(outcomes)} passed)" if outcomes else ""
    stop_note = "" if run.status == "success" else f", stopped: {run.status}"
    head = f"Check {run.check}: {run.verdict}{numbers}{stop_note}"
    failing = failing_cases(run)
    base_failing = failing_cases(base) if base is not None else []
    failing_before = [case for case in failing if case in base_failing]
    new_failing = [case for case in failing if case not in failing_before]
    if not failing and run.verdict == "passed":
        return head
    parts = [
        _cases_text(
            title, cases, run.details, max_chars // (1 + bool(new_failing and failing_before))
        )
        for title, cases in (
            ("Failing since your change", new_failing),
            ("Failed before your change too", failing_before),
        )
        if cases
    ]
    if new := [*(Counter(run.findings) - Counter(base.findings if base else ()))]:
        parts.append("\n".join(["Found now and not before:", *new[:_MAX_FINDINGS]]))
    if not any(case in run.details for case in failing):
        parts.append(run.output)
    return f"{head}\n{fence(f'output of {run.check}', clip(chr(10).join(parts), max_chars))}"


def _cases_text(
    title: str, cases: Sequence[str], details: Mapping[str, str], max_chars: int
) -> str:
    """Name the cases, and show the output of the first few."""
    names = _name_some(cases)
    detailed = [case for case in cases if details.get(case, "").strip()][:_MAX_DETAILS]
    share = max(max_chars - len(names), 0) // max(len(detailed), 1)
    return "\n".join(
        [
            f"{title}: {names}",
            *(f"{case}:\n{clip(details[case].strip(), share)}" for case in detailed),
        ]
    )


def ignored_text(ignored: Mapping[str, str]) -> str:
    """Return a text that names the new files that git ignores, and what to do about them."""
    listing = "\n".join(f"{path}: {rule}" for path, rule in list(ignored.items())[:_MAX_NAMES])
    more = f"\nand {len(ignored) - _MAX_NAMES} more" if len(ignored) > _MAX_NAMES else ""
    way_out = (
        "Your checks see these files, but your answer leaves them out. Write them to another path, "
        "or change the rule."
    )
    return (
        f"{fence('new files that git ignores: they are left out of your answer', listing + more)}\n"
        f"{way_out}"
    )


def verdict_text(state: WorkspaceState) -> str:
    """Return what a seat may conclude from its checks, in one or two sentences."""
    if not state.passed:
        return "Repair this."
    if state.partly_fixed:
        return (
            f"{len(state.fixed)} of the tests that failed now pass. These still fail: "
            f"{_name_some(state.still_failing)}. Repair those too."
        )
    conclusion = (
        "All checks pass"
        if state.complete
        else "The cases near your change pass; the whole suite runs in the clean re-check"
    )
    if state.still_failing:
        conclusion = (
            "Nothing fails that did not fail before your change "
            f"({_name_some(state.still_failing)})"
        )
    return f"{conclusion}. If the task is done, finish."


def _name_some(cases: Sequence[str]) -> str:
    return ", ".join(cases[:_MAX_NAMES]) + (
        f" and {len(cases) - _MAX_NAMES} more" if len(cases) > _MAX_NAMES else ""
    )


_MAX_OUTPUT_CASES, _MAX_LISTED_CASES = 3, 10
_CASE_CHARS = 2_000
_COMMAND_CHARS = 200
CONFIRM = (
    "Go on and fix this, or call submit again without a further change to hand it in as it is."
)


def result_text(result: ToolResult, max_chars: int) -> str:
    """Return the result of a call in about `max_chars` characters."""
    if result.status is ToolStatus.SUCCESS:
        return clip(_READERS.get(result.tool, output_text)(result.output), max_chars)
    if result.tool == "files.read" and isinstance(entries := result.output.get("entries"), list):
        return clip(_folder_text(result.output, entries), max_chars)
    output = dict(result.output)
    if isinstance(code := output.get("exit_code"), int) and code < 0:
        del output["exit_code"]  # the error says why it was ended
    rest = _READERS.get(result.tool, output_text)(output) if output else ""
    return clip(f"{result.status}: {result.error}\n{rest}".rstrip("\n"), max_chars)


def _file_text(output: Mapping[str, Any]) -> str:
    content, start, total = (
        str(output.get("content", "")),
        output.get("start"),
        output.get("total_lines", "?"),
    )
    start = start if isinstance(start, int) else 1
    lines = content.removesuffix("\n").split(
        "\n"
    )  # as grep and git count them: a form feed ends no line
    if not content:
        return f"{output.get('path', '')}: no such lines; the file has {total}"
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(lines, start)]
    return "\n".join(
        [
            f"{output.get('path', '')}, lines {start} to {start + len(lines) - 1} of {total}",
            *numbered,
        ]
    )


def _folder_text(output: Mapping[str, Any], entries: Sequence[Any]) -> str:
    names = [_plain_name(name) for name in entries]
    total = output.get("total", len(names))
    left_out = f", the first {len(names)} are shown" if output.get("truncated") else ""
    return "\n".join(
        [f"{output.get('path', '')} is a folder with {total} entries{left_out}:", *names]
    )


def _shell_text(output: Mapping[str, Any]) -> str:
    text, code = str(output.get("output", "")), output.get("exit_code")
    notes = (
        [f"ended by {_signal_name(-code)}" if code < 0 else f"exit code {code}"]
        if isinstance(code, int)
        else []
    )
    if folder := output.get("working_directory"):
        notes.append(f"the working directory is now {_plain_name(folder)}")
    if isinstance(processes := output.get("ended_processes"), list) and processes:
        notes.append(
            f"background processes ended with the call: {', '.join(map(_plain_name, processes))}"
        )
    known_fields = {"output", "exit_code", "working_directory", "ended_processes"}
    notes += [
        str(value) if name == "note" else f"{name}: {value}"
        for name, value in output.items()
        if value and name not in known_fields
    ]
    foot = f"[{'; '.join(notes)}]" if notes else ""
    return "\n".join(filter(None, (text.rstrip("\n") or "(no output)", foot)))


def _signal_name(number: int) -> str:
    try:
        return f"the signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _plain_name(value: object) -> str:
    """Return a name by others on one line."""
    return str(value) if str(value).isprintable() else repr(str(value))


def _edit_text(output: Mapping[str, Any]) -> str:
    return f"{output.get('path', '')}: {output.get('replaced', 0)} replaced"


def _write_text(output: Mapping[str, Any]) -> str:
    return f"{output.get('path', '')}: {output.get('bytes', 0)} bytes written"


_READERS = {
    "files.read": _file_text,
    "code.shell": _shell_text,
    "files.edit": _edit_text,
    "files.write": _write_text,
}


def new_failures(run: CheckRun, base: CheckRun | None) -> list[str]:
    """Return the cases that fail now and did not before. A check without cases is one itself."""
    if not run.cases:
        failed_before = base is not None and base.verdict != "passed"
        return [] if run.verdict == "passed" or failed_before else [run.check]
    base_outcomes = base.cases if base is not None else {}
    return [case for case in failing_cases(run) if base_outcomes.get(case) not in FAILED_OUTCOMES]


def is_clean(state: WorkspaceState, prepared: Prepared, left_out: Mapping[str, str]) -> bool:
    """Return whether the checks near a submission found no new failure, lost no case, and ran a
    test. If only tests changed, no test of the base need run.
    """
    if state.regressions or left_out:
        return False
    only_tests = state.patch is not None and set(state.patch.paths) <= set(state.patch.tests)
    if not only_tests and any(
        _known_cases(run, prepared) == 0
        for name, run in state.runs.items()
        if name in state.partial_checks
    ):
        return False
    if any(
        run.status != "success" or new_failures(run, prepared.runs.get(name))
        for name, run in state.runs.items()
    ):
        return False
    return any(run.cases for run in state.runs.values()) or not any(
        run.cases for run in prepared.runs.values()
    )


def submission_text(
    state: WorkspaceState, prepared: Prepared, left_out: Mapping[str, str], max_chars: int
) -> str:
    """Return the results of the checks near a submitted change in about `max_chars` characters."""
    changed = ", ".join(state.patch.paths[:20]) if state.patch else ""
    parts = [f"Changed files: {changed}"]
    if left_out:
        parts.append(ignored_text(left_out))
    if not any(run.cases for run in state.runs.values()) and any(
        run.cases for run in prepared.runs.values()
    ):
        parts.append("0 tests ran near your change: nothing shows that it works.")
    share = max_chars // (len(state.runs) + 1)
    parts += [
        _check_text(run, prepared, share, narrowed=name in state.partial_checks)
        for name, run in state.runs.items()
    ]
    parts += [
        _left_out_text(name, prepared) for name in state.partial_checks if name not in state.runs
    ]
    if state.regressions:
        parts.append(
            f"Passed before your change and not after it: {_list_names(state.regressions)}."
        )
    return clip("\n\n".join(parts), max_chars)


def _known_cases(run: CheckRun, prepared: Prepared) -> int:
    """Return how many of the base's tests ran."""
    base = prepared.runs.get(run.check)
    return sum(case in base.cases for case in run.cases) if base is not None else 0


def _left_out_text(check: str, prepared: Prepared) -> str:
    return (
        f"{check}: 0 of {len(prepared.runs[check].cases)} existing tests ran: none was found near "
        "your change. Run those that matter."
    )


def _check_text(run: CheckRun, prepared: Prepared, max_chars: int, *, narrowed: bool) -> str:
    base = prepared.runs.get(run.check)
    new = new_failures(run, base)
    old = [case for case in failing_cases(run) if case not in new]
    passed = sum(outcome == "passed" for outcome in run.cases.values())
    summary = f"{len(run.cases)} tests ran, {passed} passed" if run.cases else str(run.verdict)
    lines = [f"{run.check}: {summary}, {run.duration_ms / 1000:.1f} s"]
    if narrowed and base is not None:
        near_count = _known_cases(run, prepared)
        near_text = (
            "those near your change"
            if near_count
            else "none was found near your change. Run those that matter"
        )
        lines.append(f"{near_count} of {len(base.cases)} existing tests ran: {near_text}.")
    if argv := prepared.base.profile.checks.get(run.check):
        lines.append(f"command of the whole check: {clip(shlex.join(argv), _COMMAND_CHARS)}")
    if run.status != "success":
        lines.append(f"stopped: {run.status}")
    if old:
        lines.append(
            f"Failed before your change too, which does not count against you: {_list_names(old)}"
        )
    if new:
        lines.append(f"New failures: {_list_names(new)}")
        lines += [
            f"{case}:\n{clip(run.details[case].strip(), _CASE_CHARS)}"
            for case in new[:_MAX_OUTPUT_CASES]
            if run.details.get(case)
        ]
        if not any(run.details.get(case) for case in new):
            lines.append(clip(run.output.strip(), _CASE_CHARS))
    return clip("\n".join(lines), max_chars)


def _list_names(cases: Sequence[str]) -> str:
    return ", ".join(cases[:_MAX_LISTED_CASES]) + (
        f" and {len(cases) - _MAX_LISTED_CASES} more" if len(cases) > _MAX_LISTED_CASES else ""
    )
