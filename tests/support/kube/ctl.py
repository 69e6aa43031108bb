"""kubectl, as people use it, in the cluster that KUBECONFIG names."""

from __future__ import annotations

import asyncio
import subprocess


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """Return the output, including errors. Raises `AssertionError` with it if the command fails and
    `check` is set.
    """
    completed = subprocess.run(
        ["kubectl", *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if check and completed.returncode:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {completed.stdout}")
    return completed.stdout


async def ask(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """Run `kubectl` without blocking the event loop."""
    return await asyncio.to_thread(kubectl, *arguments, stdin=stdin, check=check)
