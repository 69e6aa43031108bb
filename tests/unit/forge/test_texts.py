"""Text of models and strangers remains text on a forge."""

from __future__ import annotations

import html
import re

import pytest

from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.forge.client import ForgeComment, Issue, ReviewComment
from moothall.forge.texts import (
    FailedCheck,
    checks_task,
    clean_log,
    further,
    issue_task,
    no_pull,
    pull_body,
    pull_title,
    review_task,
    task_marked,
    text,
)

HOSTILE = (
    "fixes #1, Closes: acme/app#2, resolve GH-3, close https://forge.example/acme/app/issues/4 !5 "
    "@ada @acme/team ada@example.org "
    "[here](javascript:x) <img src=x onerror=y> www.example.org `code` | a | \u202eback\u200b "
    "```\n# head\n- [ ] todo\n<!-- x -->"
)
# Patterns that either forge looks for, in the raw text (of a squashed commit) and in the rendered
# one.
_FINDS = (
    r"@[\w-]",
    r"#\d",
    r"\b[A-Za-z]+-\d",
    r"!\d",
    r"://",
    r"www\.\w",
    r"\]\(",
    r"<[a-z!/]",
    r"[\u202a-\u202e\u200b]",
)


def _outcome(**overrides: object) -> Outcome:
    evidence = Evidence(HOSTILE, Verdict.PASSED, passed=3)
    applies = Evidence("applies", Verdict.PASSED)
    result = Result(
        1,
        "agent-dev-001",
        "dev",
        0.9,
        (HOSTILE, HOSTILE),
        passed_gates=True,
        proven=True,
        content=HOSTILE,
        evidence=(applies, evidence),
        diff="+x\n",
    )
    seat = SeatOutcome("agent-dev-002", SeatStatus.FAILED, "NO_CHANGES", HOSTILE)
    fields = {
        "commit_sha": "a" * 40,
        "winner_id": "agent-dev-001",
        "proven": True,
        "results": (result,),
        "seats": (seat,),
        "error_message": HOSTILE,
    }
    return Outcome("issue-1-abc", DeliberationStatus.COMPLETED, **{**fields, **overrides})  # type: ignore[arg-type] # a test's


ISSUE = Issue(number=7, title=HOSTILE, body=HOSTILE, author="eve")


@pytest.mark.parametrize("find", _FINDS)
@pytest.mark.parametrize(
    "comment",
    [
        text(HOSTILE, 5000),
        pull_title(ISSUE),
        pull_body(_outcome(), ISSUE),
        no_pull(_outcome()),
        no_pull(_outcome(commit_sha="", winner_id="")),
        further(_outcome(), HOSTILE),
        further(_outcome()),
        further(_outcome(), failed_commit="b" * 40),
    ],
    ids=["text", "title", "pull", "unproven", "none", "left", "further", "checks"],
)
def test_foreign_text_mentions_nobody_and_links_or_closes_nothing(comment: str, find: str) -> None:
    comment_text = (
        comment.replace("issue #7", "")
        .replace("Closes #7", "")
        .replace("<br>", "")
        .replace("agent-dev-00", "")
    )
    raw = comment_text.replace("issue-1-abc", "")
    visible_text = html.unescape(raw)
    raw = re.sub(r"&#\d+;", "", raw)
    assert not re.search(find, raw)
    # These are searched before escapes are read.
    if find not in {r"www\.\w", r"\]\(", r"<[a-z!/]"}:
        assert not re.search(find, visible_text)


def test_a_table_stays_intact() -> None:
    rows = [line for line in pull_body(_outcome(), ISSUE).splitlines() if line.startswith("|")]
    assert [row.count("|") for row in rows] == [8, 8, 8]
    assert "3 passed, 0 failed" in rows[2]
    assert "applies passed<br>" in rows[2], "a check without tests has no count"


def test_a_task_marker_is_found_only_at_the_start() -> None:
    for body in (pull_body(_outcome(), ISSUE), no_pull(_outcome()), further(_outcome())):
        assert task_marked(body) == "issue-1-abc"
    assert task_marked("see Task `issue-1-abc`") == ""


def test_texts_are_within_the_length_limit_of_a_forge() -> None:
    many_results = tuple(_outcome().results[0] for _ in range(60))
    body = pull_body(_outcome(results=many_results), ISSUE)
    assert len(body) < 65_000
    assert "`moothall show` has the rest" in body


def test_a_long_issue_does_not_displace_the_comment_of_the_requester() -> None:
    issue = ISSUE.model_copy(update={"body": "x" * 5_000})
    task = issue_task(
        "acme/app",
        issue,
        ForgeComment(id=1, body="Only the parser, please.", author="writer"),
        limit=2_000,
    )
    assert len(task) == 2_000
    assert "Only the parser, please." in task


def test_no_foreign_text_is_in_a_commit_title() -> None:
    post = ForgeComment(id=3, body="Closes #1 @ada", author="eve")
    for request in (
        issue_task("a/b", ISSUE, None, 20_000),
        issue_task("a/b", ISSUE, post, 20_000),
        review_task("a/b", ISSUE, post, [ReviewComment(path="x.py", body="no")], 20_000),
        checks_task("a/b", ISSUE, [FailedCheck("eve", "Closes #1 @ada")], 20_000),
    ):
        title = " ".join(request.split())[:72]
        assert not set(title) & set("@#!<`")
        assert "eve" not in title
    assert len(issue_task("a/b", ISSUE, post, 300)) == 300


def test_a_title_without_words_uses_the_issue_number() -> None:
    assert pull_title(Issue(number=7, title="@#!")) == "Issue 7"


def test_a_long_log_is_cut_to_its_end_and_leaves_space_for_others() -> None:
    checks = [FailedCheck("one", "x" * 50_000 + "the end"), FailedCheck("two\nlines", "short")]
    task = checks_task("a/b", ISSUE, checks, 5_000)
    assert "Check one failed:\nx" in task
    assert "the end\n\nCheck two lines failed:\nshort\n" in task
    assert "The issue's title" in task


def test_a_log_is_plain_text_up_to_the_failed_step() -> None:
    raw = (
        "\ufeff2026-11-28T10:00:00.1234567Z \x1b[31;1mred\x1b[0m\r\n"
        "2026-11-28T10:00:01Z \x1b]0;title\x07tab\there\u202e\n"
        "##[error]first\n##[error]exit code 1\nPost job"
    )
    assert clean_log(raw) == "red\ntab\there\n##[error]first\n##[error]exit code 1"
