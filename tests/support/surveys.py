"""What a workspace changed, as the workspaces collect it."""

from __future__ import annotations

from moothall.repositories.changes import ChangeScan, WorkspaceChanges
from moothall.repositories.clone import TrustedClone


def survey_all(survey: ChangeScan) -> WorkspaceChanges:
    """Return what was written where nothing is ignored."""
    while survey.list_new_paths() is not None:
        survey.apply_ignore_rules({})
    return survey.read()


async def survey_with(
    clone: TrustedClone, sha: str, survey: ChangeScan
) -> tuple[WorkspaceChanges, int]:
    """Return what was written and not ignored, and how often git was asked."""
    questions = 0
    while (new := survey.list_new_paths()) is not None:
        survey.apply_ignore_rules(await clone.ignored(sha, new))
        questions += 1
    return survey.read(), questions
