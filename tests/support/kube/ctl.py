"""kubectl, as people use it, in the cluster that KUBECONFIG names."""

from __future__ import annotations

import asyncio
import subprocess


def kubectl(*arguments: str, given: str | None = None, check: bool = True) -> str:
    """Return what it printed, errors too. Raises `AssertionError` with that where it fails and
    `check` is set.
    """
    done = subprocess.run(
        ["kubectl", *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stdout}")
    return done.stdout


async def ask(*arguments: str, given: str | None = None, check: bool = True) -> str:
    """`kubectl`, beside others."""
    return await asyncio.to_thread(kubectl, *arguments, given=given, check=check)
