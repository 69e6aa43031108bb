"""Text of others, made fit for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str, limit: int = 400) -> str:
    """Return hostile text fit for a terminal: no control or direction characters, one length."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def teller(*, quiet: bool) -> Callable[[str], None]:
    """Return what says a line on stderr before there is a progress printer, whose imports take
    longer than
    to refuse a wrong address.
    """
    return lambda line: None if quiet else click.echo(f"{'':<16}{plain(line)}", err=True)
