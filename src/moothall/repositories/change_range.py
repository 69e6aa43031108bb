"""The range of commits that a branch would bring into another one."""

from __future__ import annotations

from moothall.domain.repository import ChangeRange
from moothall.errors import InvalidRequest, RepositoryError
from moothall.repositories.clone import TrustedClone

_MAX_COMMITS = 50


async def find_change(clone: TrustedClone, repository: str, *, tip: str, head: str) -> ChangeRange:
    """Return the commits of `head` that `tip` lacks, from their merge base. The clone has both.

    Raises `InvalidRequest` if they would change nothing, `RepositoryError` if they share no
    history.
    """
    result = await clone.call("merge-base", tip, head)
    base = result.out.decode().split()[0] if not result.status else ""
    if not base:
        raise RepositoryError(
            f"{head[:12]} and {tip[:12]} share no commit, so there is no base to judge on. A "
            "shallow clone lacks them: fetch its history (git fetch --unshallow)"
        )
    if base == head:
        raise InvalidRequest(f"there is nothing to judge: {tip[:12]} contains {head[:12]} already")
    await clone.call("update-ref", f"refs/moothall/bases/{base}", base)
    if await _tree_of(clone, base) == await _tree_of(clone, head):
        raise InvalidRequest(f"there is nothing to judge: {head[:12]} has the files of {base[:12]}")
    merged = await clone.call("merge-tree", "--write-tree", "--no-messages", tip, head)
    if not merged.status and merged.out.decode().strip() == await _tree_of(clone, tip):
        raise InvalidRequest(
            f"there is nothing to judge: merging {head[:12]} changes no file of {tip[:12]}"
        )
    log = await clone.call(
        "log",
        "--reverse",
        f"--max-count={_MAX_COMMITS}",
        "--no-merges",
        "--no-show-signature",
        "--format=%B",
        f"{base}..{head}",
    )
    return ChangeRange(
        repository,
        base,
        head,
        messages=log.out.decode(errors="replace").strip(),
    )


async def _tree_of(clone: TrustedClone, sha: str) -> str:
    return (await clone.call("rev-parse", f"{sha}^{{tree}}")).out.decode().strip()
