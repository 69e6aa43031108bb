"""The text of a git diff between two commits, whatever bytes their files hold."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from moothall.repositories.scratch import scratch

Run = Callable[..., Awaitable[bytes]]
"""A git command in the repository: its words in, what it prints out. Raises `RepositoryError`."""
_FIXED = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
)


async def diff_between(run: Run, old: str, new: str, only: str = "") -> str:
    """Return what git says that changed from one full commit id to another; files that are not
    UTF-8 come as binary.

    `only` is an option that leaves some changes out. Raises `RepositoryError`.
    """
    options = (only,) if only else ()
    try:
        return (await _diff(run, old, new, *options)).decode()
    except UnicodeDecodeError:
        listed = await run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
    parts = []
    with scratch() as folder:
        binary = folder / "attributes"
        binary.write_text("* -diff\n", encoding="ascii")
        for path in os.fsdecode(listed).split("\0")[:-1]:
            try:
                part = (await _diff(run, old, new, *options, path=path)).decode()
            except UnicodeDecodeError:
                part = (
                    await _diff(run, old, new, *options, path=path, attributes=str(binary))
                ).decode()
            parts.append(part)
    return "".join(parts)


async def _diff(
    run: Run, old: str, new: str, *options: str, path: str = "", attributes: str = "/dev/null"
) -> bytes:
    return await run(
        "-c",
        f"core.attributesFile={attributes}",
        "diff",
        *_FIXED,
        *options,
        old,
        new,
        "--",
        *((path,) if path else ()),
    )
