"""Cases that a runner tells in its output: `go test -json`, cargo's libtest, nextest, and TAP.

Standard library only, and read inside the sandbox. Each reader is given the output line by line and
returns what people are shown of the line. Nothing that a line holds makes one fail.
"""

from __future__ import annotations

import json
import re

from moothall.sandbox_runtime.cases import ERRORED, FAILED, PASSED, RED, SKIPPED, Cases

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 200_000
_DEEPEST = 50
_KEPT = 200


class Stream:
    """Cuts output into lines for a reader."""

    def __init__(self, cases: Cases, argv: tuple[str, ...]) -> None:
        program = argv[0].rpartition("/")[2] if argv else ""
        self._read: Callable[[str], str] = (GoTestReader if program == "go" else TextReportReader)(
            cases
        ).line
        self._left = b""

    def feed(self, data: bytes) -> bytes:
        """Return what is shown of `data`, and of what was left before."""
        *lines, self._left = (self._left + data).split(b"\n")
        if len(self._left) > _LONGEST:
            lines, self._left = [*lines, self._left], b""
        return b"".join(self._show(line, b"\n") for line in lines)

    def end(self) -> bytes:
        """Return what is shown of the rest."""
        left, self._left = self._left, b""
        return self._show(left, b"") if left else b""

    def _show(self, line: bytes, end: bytes) -> bytes:
        text = line.decode("utf-8", "replace")
        shown = self._read(text)
        return (
            line + end
            if shown is text
            else shown.encode("utf-8", "replace") + (end if shown and shown[-1] != "\n" else b"")
        )


class GoTestReader:
    """`go test -json`: a case is `package::TestName/sub`; a package that did not compile, or
    panicked, is a case itself.
    """

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._printed: dict[str, list[str]] = {}
        self._red: set[str] = set()

    def line(self, text: str) -> str:
        """Read one."""
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
            if len(printed) < _KEPT and len(self._printed) <= 2 * _KEPT:
                printed.append(output)
            return (
                output
                if not test
                or output.lstrip().startswith(("---", "===", "panic")) is False
                or "FAIL" in output
                else ""
            )
        if action == "run":
            self._cases.begin(case)
        elif test and action in {"pass", "fail", "skip"}:
            result = {"pass": PASSED, "fail": FAILED}.get(action, SKIPPED)
            if result == FAILED:
                self._red.add(package)
            printed = self._printed.pop(case, [])
            self._cases.tell(case, result, ms, "".join(printed) if result == FAILED else "")
        elif not test and action == "fail" and package:
            self._package_failed(package, ms)
        return ""

    def _package_failed(self, package: str, ms: int) -> None:
        said = "".join(self._printed.pop(package, []))
        if "panic: test timed out" in said:
            said = f"hit the limit of its package\n{said}"
        inner = [case for case in self._cases.begun if case.startswith(f"{package}::")]
        for case in inner:
            self._cases.tell(case, FAILED, said="".join(self._printed.pop(case, [])) + said)
        if package not in self._red and not inner:
            self._cases.tell(package, ERRORED, ms, said)


_RUNNING = re.compile(
    r"\s+Running (?:unittests )?(?:(?P<source>\S+) \()?(?P<binary>\S+?)-[0-9a-f]{16}(?:\.exe)?\)?$"
)
_DOC = re.compile(r"\s+Doc-tests (\S+)$")
_BEGIN = re.compile(r"running \d+ tests?$")
# A test may have printed the beginning of a line like libtest's own, as trybuild does.
_TEST = re.compile(
    r"test (?:.* \.\.\. test )?(?P<name>.+?)(?P<mode> - should panic)? \.\.\. "
    r"(?P<result>ok|FAILED|ignored|bench:)"
)
_LONG = re.compile(
    r"test (?:.* \.\.\. test )?(?P<name>.+) has been running for over (?P<seconds>\d+) seconds$"
)
_OUT = re.compile(r"---- (?P<name>.+?)(?: - should panic)? (?:stdout|stderr) ----$")
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
# Comments that head no section: what a test logged or why it failed (ava, Perl, bats), and counts
# at the end.
_TAP_REMARK = re.compile(
    r"\s|\((?:in test file|from function) "
    r"|(?:tests|suites|pass|fail|skip|todo|cancelled|skipped|failed|duration_ms) +[\d.]+$|Ran \d+ "
    r"test"
)
_AVA_HOOK = re.compile(r"(?:^| \u203a )(?:before|beforeEach|after|afterEach)(?:\.always)? hook\b")
_AVA_SEPARATOR = " \u203a "
# What runs the scripts of several packages at once puts the package before each line: pnpm, yarn,
# turbo.
_MEMBER = re.compile(
    r"(?:(?P<path>[\w@.+/-]{1,200})[ :][\w:-]{1,60}|\[(?P<name>[\w@.+/-]{1,200})\]): "
)
_DIRECTIVE = re.compile(r"(?:^|\s+)# (?P<word>SKIP|TODO|time=[\d.]+ms)\b.*$", re.IGNORECASE)


class TextReportReader:
    """Output for people: libtest's, nextest's and TAP, each known by its first lines. Libtest's
    cases are
    `crate src/lib.rs::module::test`, TAP's `above > name`, and `package > above > name` where lines
    begin with a package.
    """

    def __init__(self, cases: Cases, member: str = "") -> None:
        self._cases = cases
        self._member = member
        self._members: dict[str, TextReportReader] = {}
        self._place = ""
        self._places: dict[str, int] = {}
        self._open = False
        self._said_of = ""
        self._nextest = False
        self._tap = False
        self._above: list[str] = []
        self._tap_red = ""
        self._tap_inset = ""
        self._tap_open = False
        self._tap_subtests = False

    def line(self, text: str) -> str:
        """Read one."""
        if len(text) <= _LONGEST:
            if self._nextest:
                self._read_nextest(text)
                return text
            if (
                text[:5] == "test "
                or text[:8] == "running "
                or text[:5] == "---- "
                or self._open
                or self._said_of
            ):
                self._libtest(text)
            if text[:1] == " " and ("Running " in text or "Doc-tests " in text):
                self._begin(text)
            elif text[:1] == " " and _NEXTEST_START.match(text):
                self._nextest = True
            if (self._tap_red and self._tap_says(text)) or (
                self._members and self._of_member(text)
            ):
                return text
            if "ok" in text or "#" in text or "1.." in text or "TAP " in text:
                self._read_tap(text)
        return text

    def _begin(self, text: str) -> None:
        if found := _DOC.match(text):
            place = f"{found[1]} doc"
        elif found := _RUNNING.match(text):
            binary = found["binary"].rpartition("/")[2]
            place = f"{binary} {found['source']}" if found["source"] else binary
        else:
            return
        self._tell_crash()
        number = self._places[place] = self._places.get(place, 0) + 1
        self._place = place if number == 1 else f"{place} #{number}"

    def _tell_crash(self) -> None:
        """A binary ended before it said its result: it crashed."""
        if self._open:
            self._open = False
            self._cases.tell(
                self._place or "tests", ERRORED, said="it ended before all of its tests had run"
            )

    def _id(self, name: str) -> str:
        name = _LINE_NUMBER.sub("", name)
        return f"{self._place}::{name}" if self._place else name

    def _libtest(self, text: str) -> None:
        if _BEGIN.match(text):
            self._open, self._said_of = True, ""
            self._cases.told += 1
        elif text.startswith("test result: "):
            self._open, self._said_of = False, ""
            self._cases.forget(
                self._id("")
            )  # of long ones only: it said how each of its tests ended
        elif text.startswith("error: ") and self._open:
            self._tell_crash()
        elif (found := _LONG.match(text)) and self._open:
            self._cases.begin(self._id(found["name"]))
        elif (found := _TEST.match(text)) and self._open:
            case = self._id(found["name"])
            result = {"ok": PASSED, "FAILED": FAILED}.get(found["result"], SKIPPED)
            self._cases.tell(
                self._cases.next_id(case) if _LINE_NUMBER.search(found["name"]) else case, result
            )
        elif found := _OUT.match(text):
            self._said_of = self._id(found["name"])
        elif text == "failures:":
            self._said_of = ""
        elif self._said_of and text and self._cases.results.get(self._said_of) in RED:
            self._cases.say(self._said_of, text)

    def _read_nextest(self, text: str) -> None:
        """What a red case printed follows its line. Of a case that is tried again the last try has
        a number, and the others none.
        """
        if found := _NEXTEST.match(text):
            self._said_of = ""
            again = found["number"] and not found["number"][:1].isdigit()
            if found["yet"] or found["result"] in {"SLOW", "START"} or again:
                return
            green, case = found["result"] in _NEXTEST_GREEN, f"{found['binary']}::{found['name']}"
            result = PASSED if green else SKIPPED if found["result"] == "SKIP" else FAILED
            known = case in self._cases.results  # they are told again at the end
            self._cases.tell(case, result, _milliseconds(found["seconds"]))
            self._said_of = "" if known or result != FAILED else case
        elif text[:4] == "────":
            self._said_of = ""
        elif self._said_of and text.strip():
            self._cases.say(self._said_of, text.removeprefix("    "))

    def _of_member(self, text: str) -> bool:
        """Read a line that begins with a package; was it one?"""
        found = _MEMBER.match(text) if ": " in text and not self._member else None
        member = found and (found["path"] or found["name"])
        if not found or not member:
            return False
        rest = text[found.end() :]
        if member not in self._members and len(self._members) < _KEPT and _TAP_START.match(rest):
            self._members[member] = TextReportReader(self._cases, member)
        if member in self._members:
            self._members[member].line(rest)
        return member in self._members

    def _tap_says(self, text: str) -> bool:
        """Read a line of the block that may follow a red case, set in from it; was it one?"""
        inner, bare = text.removeprefix(self._tap_inset), text.strip()
        if (inner == text and bare) or (not self._tap_open and bare != "---"):
            self._tap_red = ""
            return False
        if bare == "...":
            self._tap_red = ""
        elif self._tap_open:
            self._cases.say(self._tap_red, inner)
        self._tap_open = True
        return True

    def _read_tap(self, text: str) -> None:
        if _TAP_START.match(text):
            self._tap = True
            if text[:1] == "T":  # another program's, as of `tape a.js && tape b.js`
                self._above, self._tap_subtests = [], False
        elif ": TAP version" in text and self._of_member(text):
            return
        elif self._tap and (found := _TAP.match(text)):
            depth = len(found["indent"]) // 4
            if (
                depth == 0
                and self._above
                and found["dash"]
                and _is_of_ava(self._above[0], found["name"])
            ):
                self._above = []
            self._tap_case(depth, found["name"], found["number"] or "", bad=bool(found["bad"]))
        elif (
            self._tap and (found := _TAP_NOTE.match(text)) and len(found["indent"]) // 4 < _DEEPEST
        ):
            depth = len(found["indent"]) // 4
            self._tap_subtests = self._tap_subtests or bool(found["subtest"])
            if not found["subtest"] and (self._tap_subtests or _TAP_REMARK.match(found["name"])):
                return
            self._above[depth:] = [*[""] * (depth - len(self._above)), found["name"]]

    def _tap_case(self, depth: int, name: str, number: str, *, bad: bool) -> None:
        directive = _DIRECTIVE.search(name)
        name = _DIRECTIVE.sub("", name).removesuffix(" {").strip() or number
        above = self._above[: depth + 1]
        if above and above[-1] == name and len(above) == depth + 1:
            above = above[:-1]  # node: the subtest's own line comes after those within it
        word = directive["word"].upper() if directive else ""
        result = SKIPPED if word in {"SKIP", "TODO"} else FAILED if bad else PASSED
        case = self._cases.next_id(" > ".join([*filter(None, (self._member, *above)), name]))
        self._cases.tell(case, result)
        self._tap_red, self._tap_inset, self._tap_open = (
            case if result == FAILED else "",
            f"{' ' * 4 * depth}  ",
            False,
        )


def _is_of_ava(comment: str, name: str) -> bool:
    """Whether a comment before a test point is ava's: the title of a hook that logged something. It
    heads no section, and which one comes last before a test depends on the order in which files
    end.
    """
    if _AVA_HOOK.search(comment) or comment.endswith(f" for {name.rpartition(_AVA_SEPARATOR)[2]}"):
        return True
    return _AVA_SEPARATOR in comment and _AVA_SEPARATOR in name


def _milliseconds(seconds: str) -> int:
    try:
        return round(float(seconds) * 1000)
    except (ValueError, OverflowError):
        return 0
