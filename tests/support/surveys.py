"""What a workspace changed, as the workspaces collect it."""

from __future__ import annotations

from moothall.repositories.changes import ChangeScan, Written
from moothall.repositories.clone import TrustedClone


def survey_all(survey: ChangeScan) -> Written:
    """Return what was written where nothing is ignored."""
    while survey.look() is not None:
        survey.leave_out({})
    return survey.read()


async def survey_with(clone: TrustedClone, sha: str, survey: ChangeScan) -> tuple[Written, int]:
    """Return what was written and not ignored, and how often git was asked."""
    asked = 0
    while (new := survey.look()) is not None:
        survey.leave_out(await clone.ignored(sha, new))
        asked += 1
    return survey.read(), asked
