"""What to show of a set-up command that failed: the lines that say why, and the end. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SAYS_WHY = re.compile(
    r"error|fatal|cannot|could not|couldn't|unable|no matching|not found|no such|denied|unsupported|requires? |exception|traceback"
    r"|unmet|conflict|missing|failed",
    re.IGNORECASE,
)
# Lines that say no more than that something failed.
_SAYS_NOTHING = re.compile(
    r"subprocess-exited-with-error|did not run successfully|exit code: ?\d|\[end of output\]|\[\d+ lines of output\]"
    r"|This error originates from a subprocess|hint: See above|note: This|^\s*[╰│─>]*\s*$|npm error A complete log"
    r"|Encountered error while|npm error (?:code|path|command)\b|warning",
    re.IGNORECASE,
)
_LINE, _FIRST, _TAIL, _MOST = 300, 12, 25, 8000


def reason(output: str) -> str:
    """Return the line that says best why a command failed: the last of an exception, else the first that says why; '' for none."""
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if _SAYS_WHY.search(line) and not _SAYS_NOTHING.search(line)]
    raised = [line for line in telling if re.match(r"(?:E\s+)?[\w.]*(?:Error|Exception|Warning): ", line)]
    return ((raised or telling)[-1 if raised else 0])[:_LINE] if telling else ""


def excerpt(output: str) -> str:
    """Return the first lines that say why and the last lines of all, in order, at most 8,000 characters."""
    lines = [line.rstrip()[:_LINE] for line in output.strip().splitlines() if line.strip()]
    cut = max(0, len(lines) - _TAIL)
    why = [at for at, line in enumerate(lines[:cut]) if _SAYS_WHY.search(line) and not _SAYS_NOTHING.search(line)]
    shown, last = [], -1
    for at in (*why[:_FIRST], *range(cut, len(lines))):
        if at > last + 1:
            shown.append("…")
        shown.append(lines[at])
        last = at
    return "\n".join(shown)[-_MOST:]


def explained(argv: Sequence[str], ended: str, output: str, *, hint: str = "") -> str:
    """Return the message of a set-up that failed: which command, how, why, and what to write where."""
    why = reason(output)
    return (
        f"set-up command {' '.join(argv)[:_LINE]!r} failed, {ended}{hint}{f': {why}' if why else ''}\n{excerpt(output)}\n"
        'Say which commands do it: setup = ["…"] in the repository\'s .moothall.toml (it need not be committed), '
        "or `moothall repo add PATH --setup '…'`."
    )
