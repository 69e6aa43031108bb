"""The changes of a workspace, as the workspaces collect them."""

from __future__ import annotations

from moothall.repositories.changes import ChangeScan, WorkspaceChanges
from moothall.repositories.clone import TrustedClone


def survey_all(survey: ChangeScan) -> WorkspaceChanges:
    """Return the written files if nothing is ignored."""
    while survey.list_new_paths() is not None:
        survey.apply_ignore_rules({})
    return survey.read()


async def survey_with(
    clone: TrustedClone, sha: str, survey: ChangeScan
) -> tuple[WorkspaceChanges, int]:
    """Return the written files that are not ignored, and the number of queries to git."""
    questions = 0
    while (new := survey.list_new_paths()) is not None:
        survey.apply_ignore_rules(await clone.ignored(sha, new))
        questions += 1
    return survey.read(), questions
