"""The text of a git diff between two commits, for files with any bytes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from moothall.processes import scratch

Run = Callable[..., Awaitable[bytes]]
"""Runs git in the repository with these arguments and returns its output. Raises
`RepositoryError`.
"""
_FIXED = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
)


async def diff_between(run: Run, old: str, new: str, diff_filter: str = "") -> str:
    """Return the git diff between two full commit ids. Files that are not UTF-8 are binary in it.

    `diff_filter` is an option that excludes some changes. Raises `RepositoryError`.
    """
    options = (diff_filter,) if diff_filter else ()
    try:
        return (await _diff(run, old, new, *options)).decode()
    except UnicodeDecodeError:
        listed = await run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
    parts = []
    with scratch() as folder:
        attributes_file = folder / "attributes"
        attributes_file.write_text("* -diff\n", encoding="ascii")
        for path in os.fsdecode(listed).split("\0")[:-1]:
            try:
                part = (await _diff(run, old, new, *options, path=path)).decode()
            except UnicodeDecodeError:
                part = (
                    await _diff(run, old, new, *options, path=path, attributes=str(attributes_file))
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
