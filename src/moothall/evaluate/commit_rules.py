"""Which commits may become tasks, and the text of a task from a commit message. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moothall.deliberation.judging.author_tests import adds_inline_tests
from moothall.domain.evidence import CheckRun
from moothall.ranking.diffs import file_diffs
from moothall.ranking.test_cases import containers, find_identifiers, find_missing_names
from moothall.repositories.patch_rules import is_test

MERGE = "it is a merge"
ROOT = "it has no parent"
NO_SOURCE = "it changes no source"
NO_TESTS = "it changes no tests"
LARGE = "it changes too many files"
SHORT_MESSAGE = "its message says too little for a task"
PASSES_BEFORE = "its tests pass on the parent"
UNNAMED = "its tests need a name that its message does not mention"
FAILS_AFTER = "its tests do not pass on the commit"
UNSTEADY = "its tests differ from run to run"
NO_CASES = "no test runner reported its tests"

_SOURCE_SUFFIXES = frozenset(
    [
        "py",
        "pyx",
        "pyi",
        "js",
        "jsx",
        "mjs",
        "cjs",
        "ts",
        "tsx",
        "mts",
        "cts",
        "vue",
        "svelte",
        "go",
        "rs",
        "c",
        "h",
        "cc",
        "hh",
        "cpp",
        "hpp",
        "cxx",
        "java",
        "kt",
        "kts",
        "scala",
        "rb",
        "php",
        "cs",
        "swift",
        "ex",
        "exs",
        "erl",
        "hs",
        "ml",
        "clj",
        "lua",
        "pl",
        "pm",
        "sh",
        "sql",
    ]
)
_NON_SOURCE_FOLDERS = frozenset(
    {
        "doc",
        "docs",
        "example",
        "examples",
        "benchmark",
        "benchmarks",
        ".github",
        "vendor",
        "node_modules",
    }
)
_MAX_SOURCES, _MAX_FILES = 20, 60
_MIN_WORDS, _MAX_CHARS = 4, 4000
_TRAILER = re.compile(
    r"(?i)^\s*(?:[a-z][a-z-]*-by|closes?|fix(?:es)?|resolves?|refs?|see(?:-also)?|issue|bug|pr|pull-request|change-id|git-svn-id|"
    r"cc|link|reviewed-on|differential revision|deliberation|backport of|cherry.picked.from)\s*:.*$"
    r"|^\s*\(cherry picked from commit [0-9a-f]+\)\s*$|^\s*-{3,}\s*$"
)
_CLOSES = re.compile(
    r"(?i)[\s(\[]*\b(?:(?:this )?(?:clos|fix|resolv|address)(?:es|ed|e|s)?|refs?|see|re)\s*:?\s+"
    r"(?:(?:issue|bug|pr|pull "
    r"request|ticket)s?\s*)?(?:[\w.-]+/[\w.-]+)?(?:#|gh-)\d+(?:\s*(?:,|and|&)\s*(?:#|gh-)\d+)*[)\].]?"
)
_NUMBER = re.compile(
    r"(?i)\s*[(\[]?(?:\b[\w.-]+/[\w.-]+)?(?:#|\bgh-|\bbpo-|\bissue\s+#?|\bpr\s+#?)\d+[)\]]?:?"
)
_URL = re.compile(r"[<(]?https?://\S+?(?=[\s>)]|$)[>)]?")
_TEST_PATH = re.compile(r"[`'\"]?(?<![\w/.-])[\w.-]*(?:/?[\w.-]+)*[`'\"]?")
_TEST_NAME = re.compile(r"[`'\"]?\b(?:test_\w+|Test[A-Z]\w*|\w+_test)(?:\(\))?[`'\"]?")
_ABOUT_TESTS = re.compile(
    r"(?i)^\W*(?:(?:also|and|then|:\w+:)\s+)?"
    r"(?:add(?:s|ed)?|extend(?:s|ed)?|updat(?:e|es|ed)|improv(?:e|es|ed)|adjust(?:s|ed)?"
    r"|fix(?:es|ed)?|new|more|a|write|wrote|includ(?:e|es|ed)|cover(?:s|ed)?|with)\b[^.\n]*"
    r"\b(?:tests?|specs?|test[ -]cases?|coverage|fixtures?|regressions?)\b[^.\n]*\.?$"
)
_MAX_MESSAGE_CHARS = (
    10_000  # characters of a message that are read: the patterns take quadratic time
)
UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Control, direction and zero-width characters, and halves of characters, which no encoding takes.
"""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the history: its parents, its message, and the paths that it changes."""

    sha: str
    parents: tuple[str, ...]
    message: str
    paths: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The first line of its message."""
        return self.message.strip().partition("\n")[0]


def is_source(path: str) -> bool:
    """True if a path is code that is not a test, a document, an example or a copy of other
    projects.
    """
    *folders, name = path.split("/")
    return (
        name.rpartition(".")[2].lower() in _SOURCE_SUFFIXES
        and not is_test(path)
        and _NON_SOURCE_FOLDERS.isdisjoint(folders)
    )


def reject_commit(commit: Commit, diff: str = "") -> str:
    """Return why a commit cannot become a task; '' if its tests are to be run.

    diff: of the commit; needed for tests in Rust source files.
    """
    if len(commit.parents) != 1:
        return MERGE if commit.parents else ROOT
    sources = [path for path in commit.paths if is_source(path)]
    if not sources:
        return NO_SOURCE
    if not hidden_paths(commit.paths, diff):
        return NO_TESTS
    if len(sources) > _MAX_SOURCES or len(commit.paths) > _MAX_FILES:
        return LARGE
    return "" if task_text(commit.message) else SHORT_MESSAGE


def hidden_paths(paths: Sequence[str], diff: str = "") -> tuple[str, ...]:
    """Return the paths whose change is hidden: test files with their data, and Rust files with new
    tests.
    """
    inline = (
        {
            part.path
            for part in file_diffs(diff)
            if part.path.endswith(".rs") and adds_inline_tests(part)
        }
        if diff
        else set()
    )
    return tuple(path for path in paths if is_test(path) or path in inline)


def task_text(message: str) -> str:
    """Return a commit message without trailers, issue numbers, links and names of tests.

    Return '' if fewer than four words are left.
    """
    message = UNSEEN.sub("", message[:_MAX_MESSAGE_CHARS].replace("\r\n", "\n")).strip()
    lines = [_clean_line(line) for line in message.split("\n")]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()
    words = re.findall(r"[^\W\d_]{2,}", text)
    return text[:_MAX_CHARS].rstrip() if len(words) >= _MIN_WORDS else ""


def _clean_line(line: str) -> str | None:
    """Return a line without trailers, numbers, links and tests; None to remove it."""
    if _TRAILER.match(line):
        return None
    text = _NUMBER.sub("", _URL.sub("", _CLOSES.sub("", line)))
    text = _TEST_PATH.sub(lambda match: "" if _names_test_file(match[0]) else match[0], text)
    text = _TEST_NAME.sub("", text)
    text = re.sub(r"\(\s*\)|\[\s*\]|``", "", text)
    text = re.sub(r"(?<=\S)[ \t]{2,}", " ", text).rstrip()
    if _ABOUT_TESTS.match(text) or (line.strip() and not re.search(r"\w", text)):
        return None
    return text


def _names_test_file(word: str) -> bool:
    path = word.strip("`'\".,;:")
    return "." in path.rpartition("/")[2] and is_test(path)


@dataclass(frozen=True, slots=True)
class HiddenCases:
    """Cases of one check: `fixed` fail before and pass after, `kept` pass on both; `why` none is
    fixed.
    """

    fixed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    reason: str = ""


def compare_runs(
    untouched: CheckRun | None, before: CheckRun, after: CheckRun, text: str
) -> HiddenCases:
    """Compare a check's runs with the hidden tests before and after the fix.

    untouched: the run on the parent without the hidden tests. text: the text of the task; a file
    that
    could not be loaded before counts as failing only if the text mentions the missing name.
    """
    passing = [case for case, outcome in after.cases.items() if outcome == "passed"]
    if not passing:
        return HiddenCases(reason=FAILS_AFTER if after.cases else NO_CASES)
    untouched_outcomes = untouched.cases if untouched is not None else {}
    # A case that passed without the hidden tests and fails with them was changed by the commit.
    kept = [
        case for case in passing if before.cases.get(case, untouched_outcomes.get(case)) == "passed"
    ]
    candidates = [
        case for case in passing if case not in {*kept} and before.cases.get(case) != "skipped"
    ]
    fixed = (
        [case for case in candidates if _fails_before(before, case, text)]
        if before.status == "success"
        else []
    )
    reason = "" if fixed else UNNAMED if candidates else PASSES_BEFORE
    return HiddenCases(tuple(fixed), tuple(kept) if fixed else (), reason)


def _fails_before(before: CheckRun, case: str, text: str) -> bool:
    if before.cases.get(case) == "failed":
        return True
    errors = "\n".join(
        [
            *(before.details.get(name, "") for name in (case, *containers(case))),
            before.output[-8000:],
        ]
    )
    missing = find_missing_names(errors)
    return (
        bool(missing & find_identifiers(text))
        if missing or case not in before.cases
        else before.cases[case] == "errored"
    )


def steady_cases(
    hidden: HiddenCases, before: Sequence[CheckRun], after: Sequence[CheckRun]
) -> HiddenCases:
    """Return the cases with the same result in further runs."""
    fixed = tuple(
        case
        for case in hidden.fixed
        if all(run.cases.get(case) not in {"passed", "skipped"} for run in before)
        and all(run.cases.get(case) == "passed" for run in after)
    )
    kept = tuple(
        case for case in hidden.kept if all(run.cases.get(case) == "passed" for run in after)
    )
    return HiddenCases(fixed, kept, "" if fixed else hidden.reason or UNSTEADY)


def count_reasons(rows: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, int]]:
    """Yield why commits were dropped and how many, the most frequent reason first."""
    counts: dict[str, int] = {}
    for row in rows:
        if reason := str(row.get("why") or ""):
            key = reason.partition(": ")[0]
            counts[key] = counts.get(key, 0) + 1
    return iter(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
