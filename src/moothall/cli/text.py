"""Foreign text, made safe for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str, limit: int = 400) -> str:
    """Return foreign text without control and direction characters, cut to `limit`."""
    cleaned = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def stderr_reporter(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line on stderr. It is used before a progress printer exists,
    whose imports take longer than refusing an invalid address.
    """
    return lambda line: None if quiet else click.echo(f"{'':<16}{plain(line)}", err=True)
