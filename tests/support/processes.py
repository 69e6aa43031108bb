"""Functions to inspect processes of this machine, which may end meanwhile."""

from __future__ import annotations

import asyncio

import psutil


def descendants(pid: int) -> list[psutil.Process]:
    """Return all current descendants of a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process; nothing if it has ended or is a zombie."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


async def all_gone(processes: list[psutil.Process], seconds: float = 20) -> list[str]:
    """Return the processes that are still alive after at most `seconds`."""
    alive = processes
    for _ in range(int(seconds * 10)):
        alive = [process for process in alive if _lives(process)]
        if not alive:
            return []
        await asyncio.sleep(0.1)
    return [str(process) for process in alive]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
