"""The checks that CI systems ran on a commit: statuses, check runs, and the logs of failed jobs.

Names, reports and logs are foreign text: whoever may push code decides what its CI prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from moothall.errors import CallFailed, NotFound, Refused
from moothall.forge.client import CheckRun, CommitStatus, ForgeClient

MAX_FAILED_CHECKS = 5
"""Failed checks whose reports and logs are read; the others are fixed by a later commit."""
_LOG_BYTES = 200_000
_REPORT_CHARS = 4_000
_MAX_WAIT = timedelta(hours=1)
_FAILED_STATES = frozenset({"failure", "error"})
_FAILED_CONCLUSIONS = frozenset({"failure", "timed_out", "startup_failure"})
_JOB_URL = re.compile(r"/(?:actions/runs/\d+/jobs?|-/jobs)/(\d{1,18})$")
_CONTROL_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))"
)
_TIMESTAMP = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z ", re.MULTILINE)
_SECTION = re.compile(r"section_(?:start|end):\d{1,12}:[^\s\x1b]{0,200}\r")  # GitLab's
_END_OF_FAILED_STEP = "##[error]"


@dataclass(frozen=True, slots=True)
class Check:
    """The newest result of a check.

    Attributes:
        running_since: None if the check has ended.
        report: what its CI system says about it.
        job_id: its job in the forge's own CI, '' for other CI systems.
    """

    name: str
    failed: bool
    running_since: datetime | None = None
    report: str = ""
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A failed check for a task: its name, and its report with the end of its log."""

    name: str
    text: str


async def read_failed_checks(
    client: ForgeClient, repository: str, sha: str, base_sha: str, now: datetime
) -> list[FailedCheck]:
    """Return the failed checks of a commit that do not fail on its base too.

    The list is empty while checks are running, so that one task gets all of them. A check that has
    been running for an hour is not waited for: some stay pending until a person acts. Raises the
    errors of the client.
    """
    checks = await _read_checks(client, repository, sha)
    failed = [check for check in checks if check.failed]
    if not failed or any(
        check.running_since and now - check.running_since < _MAX_WAIT for check in checks
    ):
        return []
    base_checks = await _read_checks(client, repository, base_sha) if base_sha else []
    failed_before = {check.name for check in base_checks if check.failed}
    return [
        FailedCheck(check.name, await _describe(client, repository, sha, check))
        for check in failed
        if check.name not in failed_before
    ][:MAX_FAILED_CHECKS]


async def _read_checks(client: ForgeClient, repository: str, sha: str) -> list[Check]:
    statuses = await client.statuses(repository, sha)
    check_runs = await client.check_runs(repository, sha)
    return [*map(_of_status, statuses), *map(_of_check_run, check_runs)]


def _of_status(status: CommitStatus) -> Check:
    state = status.state.lower()
    return Check(
        status.context,
        failed=state in _FAILED_STATES,
        running_since=_aware(status.updated_at) if state == "pending" else None,
        report=status.description,
        job_id=_job_id(status.target_url),
    )


def _of_check_run(run: CheckRun) -> Check:
    # Runs that wait for a person have the statuses waiting, requested or pending.
    is_running = run.status in {"queued", "in_progress"}
    parts: Sequence[str] = (run.output.title, run.output.summary, run.output.text)
    return Check(
        run.name,
        failed=run.status == "completed" and run.conclusion in _FAILED_CONCLUSIONS,
        running_since=_aware(run.started_at) if is_running else None,
        report="\n".join(part for part in parts if part),
        job_id=_job_id(run.details_url),
    )


def _aware(moment: datetime | None) -> datetime:
    """Return an aware datetime; without one, the check counts as running for a long time."""
    if moment is None:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _job_id(url: str) -> str:
    match = _JOB_URL.search(url)
    return match[1] if match else ""


async def _describe(client: ForgeClient, repository: str, sha: str, check: Check) -> str:
    """Return the report of a check and, if the forge has it, the log of its job."""
    log = ""
    if check.job_id:
        try:
            # An older Gitea has the number of the job within its run in the URL.
            if await client.commit_of_job(repository, check.job_id) == sha:
                log = clean_log(await client.job_log(repository, check.job_id, _LOG_BYTES))
        except (NotFound, Refused, CallFailed):
            log = ""
    report = clean_log(check.report)[:_REPORT_CHARS]
    return "\n\n".join(part for part in (report, log) if part) or "(no report)"


def clean_log(raw: str) -> str:
    """Return a log without colours, control characters and timestamps, up to the end of its failed
    step, where GitHub Actions marks it.
    """
    text = _SECTION.sub("", raw.replace("\r\n", "\n"))
    text = _TIMESTAMP.sub("", _CONTROL_SEQUENCE.sub("", text))
    text = "".join(char for char in text if char.isprintable() or char in "\n\t")
    end = text.rfind(_END_OF_FAILED_STEP)
    return (text if end < 0 else text[:end] + text[end:].partition("\n")[0]).strip()
