"""Child processes that inherit only the descriptors that they are given.

uvloop ignores `close_fds`: a child gets every inheritable descriptor of its parent, such as those
that the starting shell had open. So children are started here, and only here (ruff's TID251).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_STDERR = 2


def mark_close_on_exec() -> None:
    """Mark every open descriptor above stderr close-on-exec."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names, not paths
        if int(name) > _STDERR:
            with suppress(OSError):  # it is the listing's own, or another thread closed it
                os.set_inheritable(int(name), False)


async def start_process(
    *argv: str, pass_fds: Sequence[int] = (), **options: Any
) -> asyncio.subprocess.Process:
    """Start a child that inherits only its standard streams and `pass_fds`.

    `options` are those of `asyncio.create_subprocess_exec`, which also names the errors.
    """
    mark_close_on_exec()
    return await asyncio.create_subprocess_exec(*argv, pass_fds=pass_fds, **options)  # noqa: TID251 - here only
