"""Reads test cases from a runner's output: `go test -json`, cargo's libtest, nextest, and TAP.

Standard library only; runs inside the sandbox. Each reader receives the output line by line and
returns the text to show for the line. No line makes a reader fail.
"""

from __future__ import annotations

import json
import re

from moothall.sandbox_runtime.cases import ERRORED, FAILED, FAILED_RESULTS, PASSED, SKIPPED, Cases

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_LINE_CHARS = 200_000
_MAX_DEPTH = 50
_MAX_KEPT = 200


class Stream:
    """Splits output into lines for a reader."""

    def __init__(self, cases: Cases, argv: tuple[str, ...]) -> None:
        program = argv[0].rpartition("/")[2] if argv else ""
        self._read_line: Callable[[str], str] = (
            GoTestReader if program == "go" else TextReportReader
        )(cases).line
        self._partial_line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the text to show for `data` and the partial line before it."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > _MAX_LINE_CHARS:
            lines, self._partial_line = [*lines, self._partial_line], b""
        return b"".join(self._replace_line(line, b"\n") for line in lines)

    def end(self) -> bytes:
        """Return the text to show for the last partial line."""
        last_line, self._partial_line = self._partial_line, b""
        return self._replace_line(last_line, b"") if last_line else b""

    def _replace_line(self, line: bytes, line_end: bytes) -> bytes:
        text = line.decode("utf-8", "replace")
        replacement = self._read_line(text)
        return (
            line + line_end
            if replacement is text
            else replacement.encode("utf-8", "replace")
            + (line_end if replacement and replacement[-1] != "\n" else b"")
        )


class GoTestReader:
    """Reads `go test -json`. A case is `package::TestName/sub`. A package that did not compile or
    that panicked is itself a case.
    """

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._printed: dict[str, list[str]] = {}
        self._failed_packages: set[str] = set()

    def line(self, text: str) -> str:
        """Read a line."""
        if text[:1] != "{":
            return text
        try:
            event = json.loads(text)
            package, test, action = (
                str(event.get("Package") or ""),
                str(event.get("Test") or ""),
                str(event.get("Action") or ""),
            )
            output = str(event.get("Output") or "")
            seconds = float(event.get("Elapsed") or 0)
            return self._event(
                package or str(event.get("ImportPath") or "").partition(" [")[0],
                test,
                action,
                output,
                round(seconds * 1000),
            )
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
            return text

    def _event(self, package: str, test: str, action: str, output: str, ms: int) -> str:
        case = f"{package}::{test}" if test else package
        if action in {"output", "build-output"}:
            printed = self._printed.setdefault(package if action == "build-output" else case, [])
            if len(printed) < _MAX_KEPT and len(self._printed) <= 2 * _MAX_KEPT:
                printed.append(output)
            return (
                output
                if not test
                or output.lstrip().startswith(("---", "===", "panic")) is False
                or "FAIL" in output
                else ""
            )
        if action == "run":
            self._cases.start_case(case)
        elif test and action in {"pass", "fail", "skip"}:
            result = {"pass": PASSED, "fail": FAILED}.get(action, SKIPPED)
            if result == FAILED:
                self._failed_packages.add(package)
            printed = self._printed.pop(case, [])
            self._cases.add_result(case, result, ms, "".join(printed) if result == FAILED else "")
        elif not test and action == "fail" and package:
            self._package_failed(package, ms)
        return ""

    def _package_failed(self, package: str, ms: int) -> None:
        output = "".join(self._printed.pop(package, []))
        if "panic: test timed out" in output:
            output = f"hit the limit of its package\n{output}"
        running_cases = [case for case in self._cases.running if case.startswith(f"{package}::")]
        for case in running_cases:
            self._cases.add_result(
                case, FAILED, detail="".join(self._printed.pop(case, [])) + output
            )
        if package not in self._failed_packages and not running_cases:
            self._cases.add_result(package, ERRORED, ms, output)


_RUNNING = re.compile(
    r"\s+Running (?:unittests )?(?:(?P<source>\S+) \()?(?P<binary>\S+?)-[0-9a-f]{16}(?:\.exe)?\)?$"
)
_DOC = re.compile(r"\s+Doc-tests (\S+)$")
_TEST_COUNT = re.compile(r"running \d+ tests?$")
# A test may have printed the start of a line in libtest's format, as trybuild does.
_TEST = re.compile(
    r"test (?:.* \.\.\. test )?(?P<name>.+?)(?P<mode> - should panic)? \.\.\. "
    r"(?P<result>ok|FAILED|ignored|bench:)"
)
_LONG_RUNNING = re.compile(
    r"test (?:.* \.\.\. test )?(?P<name>.+) has been running for over (?P<seconds>\d+) seconds$"
)
_CASE_OUTPUT = re.compile(r"---- (?P<name>.+?)(?: - should panic)? (?:stdout|stderr) ----$")
_LINE_NUMBER = re.compile(r" \(line \d+\)")
_NEXTEST = re.compile(
    r"\s*(?:TRY \d+ )?(?P<result>[A-Z][A-Z0-9-]*)(?: "
    r"\d+/\d+)?\s+\[(?P<yet>>?)\s*(?P<seconds>[\d.]+)s\]\s+"
    r"(?:\(\s*(?P<number>\d+/\d+|\W+)\)\s+)?(?P<binary>\S+)\s+(?P<name>\S.*)$"
)
_NEXTEST_START = re.compile(r"\s+(?:Nextest run ID \S+ with|Starting \d+ tests? across) ")
_NEXTEST_GREEN = frozenset({"PASS", "LEAK", "FLAKY"})
_TAP = re.compile(
    r"(?P<indent> *)(?P<bad>not )?ok\b(?: +(?P<number>\d+))?(?P<dash> +-)? *(?P<name>.*)$"
)
_TAP_START = re.compile(r"TAP version \d+$| *1\.\.\d+(?: |$)")
_TAP_NOTE = re.compile(r"(?P<indent> *)# (?P<subtest>Subtest: )?(?P<name>.+)$")
# Comments that are not section titles: logs and failure reasons of tests (ava, Perl, bats), and
# final counts.
_TAP_REMARK = re.compile(
    r"\s|\((?:in test file|from function) "
    r"|(?:tests|suites|pass|fail|skip|todo|cancelled|skipped|failed|duration_ms) +[\d.]+$|Ran \d+ "
    r"test"
)
_AVA_HOOK = re.compile(r"(?:^| \u203a )(?:before|beforeEach|after|afterEach)(?:\.always)? hook\b")
_AVA_SEPARATOR = " \u203a "
# pnpm, yarn and turbo run the scripts of several packages and prefix each line with the package.
_PACKAGE_PREFIX = re.compile(
    r"(?:(?P<path>[\w@.+/-]{1,200})[ :][\w:-]{1,60}|\[(?P<name>[\w@.+/-]{1,200})\]): "
)
_DIRECTIVE = re.compile(r"(?:^|\s+)# (?P<word>SKIP|TODO|time=[\d.]+ms)\b.*$", re.IGNORECASE)


class TextReportReader:
    """Reads output for people: libtest's, nextest's and TAP, recognized by their first lines.
    Libtest's cases are `crate src/lib.rs::module::test`, TAP's `above > name`, or `package > above
    > name` if lines begin with a package.
    """

    def __init__(self, cases: Cases, member: str = "") -> None:
        self._cases = cases
        self._package = member
        self._packages: dict[str, TextReportReader] = {}
        self._binary_label = ""
        self._binary_counts: dict[str, int] = {}
        self._is_running = False
        self._detail_case = ""
        self._nextest = False
        self._tap = False
        self._sections: list[str] = []
        self._tap_failed_case = ""
        self._tap_detail_indent = ""
        self._tap_open = False
        self._tap_subtests = False

    def line(self, text: str) -> str:
        """Read a line."""
        if len(text) <= _MAX_LINE_CHARS:
            if self._nextest:
                self._read_nextest(text)
                return text
            if (
                text[:5] == "test "
                or text[:8] == "running "
                or text[:5] == "---- "
                or self._is_running
                or self._detail_case
            ):
                self._libtest(text)
            if text[:1] == " " and ("Running " in text or "Doc-tests " in text):
                self._begin_binary(text)
            elif text[:1] == " " and _NEXTEST_START.match(text):
                self._nextest = True
            if (self._tap_failed_case and self._read_tap_detail(text)) or (
                self._packages and self._read_package_line(text)
            ):
                return text
            if "ok" in text or "#" in text or "1.." in text or "TAP " in text:
                self._read_tap(text)
        return text

    def _begin_binary(self, text: str) -> None:
        if match := _DOC.match(text):
            label = f"{match[1]} doc"
        elif match := _RUNNING.match(text):
            binary = match["binary"].rpartition("/")[2]
            label = f"{binary} {match['source']}" if match["source"] else binary
        else:
            return
        self._report_crash()
        number = self._binary_counts[label] = self._binary_counts.get(label, 0) + 1
        self._binary_label = label if number == 1 else f"{label} #{number}"

    def _report_crash(self) -> None:
        """Report the binary as crashed if it ended before its result."""
        if self._is_running:
            self._is_running = False
            self._cases.add_result(
                self._binary_label or "tests",
                ERRORED,
                detail="it ended before all of its tests had run",
            )

    def _id(self, name: str) -> str:
        name = _LINE_NUMBER.sub("", name)
        return f"{self._binary_label}::{name}" if self._binary_label else name

    def _libtest(self, text: str) -> None:
        if _TEST_COUNT.match(text):
            self._is_running, self._detail_case = True, ""
            self._cases.event_count += 1
        elif text.startswith("test result: "):
            self._is_running, self._detail_case = False, ""
            self._cases.forget_running(self._id(""))  # the results of all its tests are known
        elif text.startswith("error: ") and self._is_running:
            self._report_crash()
        elif (match := _LONG_RUNNING.match(text)) and self._is_running:
            self._cases.start_case(self._id(match["name"]))
        elif (match := _TEST.match(text)) and self._is_running:
            case = self._id(match["name"])
            result = {"ok": PASSED, "FAILED": FAILED}.get(match["result"], SKIPPED)
            self._cases.add_result(
                self._cases.next_id(case) if _LINE_NUMBER.search(match["name"]) else case, result
            )
        elif match := _CASE_OUTPUT.match(text):
            self._detail_case = self._id(match["name"])
        elif text == "failures:":
            self._detail_case = ""
        elif (
            self._detail_case
            and text
            and self._cases.results.get(self._detail_case) in FAILED_RESULTS
        ):
            self._cases.add_detail(self._detail_case, text)

    def _read_nextest(self, text: str) -> None:
        """Read a line of nextest. The output of a failed case follows its line. If a case is
        retried, only the last try has a number.
        """
        if match := _NEXTEST.match(text):
            self._detail_case = ""
            is_retry = match["number"] and not match["number"][:1].isdigit()
            if match["yet"] or match["result"] in {"SLOW", "START"} or is_retry:
                return
            has_passed, case = (
                match["result"] in _NEXTEST_GREEN,
                f"{match['binary']}::{match['name']}",
            )
            result = PASSED if has_passed else SKIPPED if match["result"] == "SKIP" else FAILED
            is_repeated = case in self._cases.results  # results are repeated at the end
            self._cases.add_result(case, result, _milliseconds(match["seconds"]))
            self._detail_case = "" if is_repeated or result != FAILED else case
        elif text[:4] == "────":
            self._detail_case = ""
        elif self._detail_case and text.strip():
            self._cases.add_detail(self._detail_case, text.removeprefix("    "))

    def _read_package_line(self, text: str) -> bool:
        """Read a line that may begin with a package; return whether it did."""
        match = _PACKAGE_PREFIX.match(text) if ": " in text and not self._package else None
        package = match and (match["path"] or match["name"])
        if not match or not package:
            return False
        content = text[match.end() :]
        if (
            package not in self._packages
            and len(self._packages) < _MAX_KEPT
            and _TAP_START.match(content)
        ):
            self._packages[package] = TextReportReader(self._cases, package)
        if package in self._packages:
            self._packages[package].line(content)
        return package in self._packages

    def _read_tap_detail(self, text: str) -> bool:
        """Read a line of the indented block that may follow a failed case; return whether it was
        one.
        """
        unindented, stripped = text.removeprefix(self._tap_detail_indent), text.strip()
        if (unindented == text and stripped) or (not self._tap_open and stripped != "---"):
            self._tap_failed_case = ""
            return False
        if stripped == "...":
            self._tap_failed_case = ""
        elif self._tap_open:
            self._cases.add_detail(self._tap_failed_case, unindented)
        self._tap_open = True
        return True

    def _read_tap(self, text: str) -> None:
        if _TAP_START.match(text):
            self._tap = True
            if text[:1] == "T":  # another program's output, as of `tape a.js && tape b.js`
                self._sections, self._tap_subtests = [], False
        elif ": TAP version" in text and self._read_package_line(text):
            return
        elif self._tap and (match := _TAP.match(text)):
            depth = len(match["indent"]) // 4
            if (
                depth == 0
                and self._sections
                and match["dash"]
                and _is_ava_hook_log(self._sections[0], match["name"])
            ):
                self._sections = []
            self._tap_case(
                depth, match["name"], match["number"] or "", has_failed=bool(match["bad"])
            )
        elif (
            self._tap
            and (match := _TAP_NOTE.match(text))
            and len(match["indent"]) // 4 < _MAX_DEPTH
        ):
            depth = len(match["indent"]) // 4
            self._tap_subtests = self._tap_subtests or bool(match["subtest"])
            if not match["subtest"] and (self._tap_subtests or _TAP_REMARK.match(match["name"])):
                return
            self._sections[depth:] = [*[""] * (depth - len(self._sections)), match["name"]]

    def _tap_case(self, depth: int, name: str, number: str, *, has_failed: bool) -> None:
        directive = _DIRECTIVE.search(name)
        name = _DIRECTIVE.sub("", name).removesuffix(" {").strip() or number
        sections = self._sections[: depth + 1]
        if sections and sections[-1] == name and len(sections) == depth + 1:
            sections = sections[:-1]  # node prints a subtest's line after the lines within it
        directive_name = directive["word"].upper() if directive else ""
        result = SKIPPED if directive_name in {"SKIP", "TODO"} else FAILED if has_failed else PASSED
        case = self._cases.next_id(" > ".join([*filter(None, (self._package, *sections)), name]))
        self._cases.add_result(case, result)
        self._tap_failed_case, self._tap_detail_indent, self._tap_open = (
            case if result == FAILED else "",
            f"{' ' * 4 * depth}  ",
            False,
        )


def _is_ava_hook_log(comment: str, name: str) -> bool:
    """Return whether a comment before a test point is the title of an ava hook that logged
    something. It is not a section title, and the last such comment depends on the order in which
    files end.
    """
    if _AVA_HOOK.search(comment) or comment.endswith(f" for {name.rpartition(_AVA_SEPARATOR)[2]}"):
        return True
    return _AVA_SEPARATOR in comment and _AVA_SEPARATOR in name


def _milliseconds(seconds: str) -> int:
    try:
        return round(float(seconds) * 1000)
    except (ValueError, OverflowError):
        return 0
