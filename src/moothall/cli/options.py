"""Options that several commands have, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from moothall.cli import complete

F = TypeVar("F", bound=Callable[..., Any])

_REPOSITORY = (
    click.option(
        "--repo",
        default="",
        shell_complete=complete.repositories,
        help="A path, a URL or the id of a registered repository; by default the one you are in.",
    ),
    click.option(
        "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
    ),
    click.option(
        "--profile",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file like .moothall.toml that stands for the repository's own, this time.",
    ),
)
text_option = click.option(
    "--text",
    is_flag=True,
    help="About no repository: the answer is words, which nothing can prove.",
)
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Every event as it happens: turns, model calls, reviews."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)


def task_argument(*, required: bool) -> Callable[[F], F]:
    """Add the argument TASK: an id or a unique prefix; None if it may be left out and is.

    No default is given here: click never requires an argument with a default, not even None.
    """
    return click.argument("task", required=required, shell_complete=complete.tasks)


def repository_argument(command: F) -> F:
    """Give a command REPOSITORY, a registered id."""
    return click.argument("repository", shell_complete=complete.repositories)(command)


def example(*lines: str) -> str:
    """Return the end of a command's help: commands to copy."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def repository_options(command: F) -> F:
    """Give a command --repo, --ref and --profile."""
    for option in reversed(_REPOSITORY):
        command = option(command)
    return command
