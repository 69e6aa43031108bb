"""Options that several commands share, and the completion of their values by a shell, which must
be quick, so it reads only file names and one small file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from moothall.config import Settings
from moothall.config.file import Section
from moothall.domain.ids import LOCAL, Principal

# Shell completion of values. It must be quick, so it reads only file names and one small file.


def roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete a role."""
    from moothall.domain.ids import ROLES

    return [role for role in ROLES if role.startswith(incomplete.lower())]


def protocols(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete a protocol."""
    from moothall.domain.council import PROTOCOLS

    return [
        name
        for name, protocol in PROTOCOLS.items()
        if name.startswith(incomplete) and not protocol.judges
    ]


def repositories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete the id of a registered repository."""
    return sorted(
        path.stem
        for path in (_data_dir() / "repositories").glob("[a-z0-9]*.json")
        if path.stem.startswith(incomplete)
    )


def tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the signature is click's
    """Complete the id of one of the last tasks that this command line saw."""
    try:
        recent = (_data_dir() / _RECENT).read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [task for task in reversed(recent) if task.startswith(incomplete)]


_RECENT = "recent-tasks"
_MAX_RECENT = 100


def remember(data_dir: Path, *task_ids: str) -> None:
    """Remember the ids of tasks that a person may name next, the latest last. Write errors are
    ignored.
    """
    path = data_dir / _RECENT
    try:
        previous = path.read_text(encoding="utf-8").split() if path.exists() else []
        recent = [*(task for task in previous if task not in task_ids), *task_ids][-_MAX_RECENT:]
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text("\n".join(recent) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return


def _data_dir() -> Path:
    """Return the data directory without loading all settings: from the variable, the file or the
    default.
    """
    from_environment = os.environ.get("MOOTHALL_DATA_DIR")
    if from_environment:
        return Path(from_environment)
    import tomllib

    import platformdirs

    try:
        text = (Path(platformdirs.user_config_dir("moothall")) / "config.toml").read_text(
            encoding="utf-8"
        )
        configured = tomllib.loads(text).get("data_dir")
    except (OSError, ValueError):
        configured = None
    return (
        Path(configured)
        if isinstance(configured, str)
        else Path(platformdirs.user_data_dir("moothall"))
    )


# Options that several commands share, and numeric options whose upper bounds are settings.


_MAX_INT32 = 2**31 - 1

SEED = click.IntRange(0, 2**53 - 1)
SEQUENCE = click.IntRange(0, 2**63 - 1)
"""A sequence number of the log, or a number of events."""
F = TypeVar("F", bound=Callable[..., Any])
_REPOSITORY_OPTIONS = (
    click.option(
        "--repo",
        default="",
        shell_complete=repositories,
        help="Path, URL or id of a registered repository; by default that of the current folder.",
    ),
    click.option(
        "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
    ),
    click.option(
        "--profile",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File like .moothall.toml to use instead of the repository's own.",
    ),
)
text_option = click.option(
    "--text",
    is_flag=True,
    help="Work without a repository. The answer is text, which no test can prove.",
)
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show every event as it happens: turns, model calls, reviews.",
)
role_option = click.option(
    "--role",
    "roles",
    type=click.Choice(["po", "qa", "architect", "operator"]),
    multiple=True,
    help="po, qa and architect move stories, operator approves requests; repeatable.",
)
tenant_option = click.option(
    "--tenant", default=LOCAL.tenant, show_default=True, help="The tenant whose data is visible."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document to stdout and nothing else."
)


def list_roles(principal: Principal) -> list[str]:
    """Return the values of `role_option` that a principal has."""
    return [*sorted(principal.roles), *(["operator"] if principal.operator else [])]


class SettingRange(click.IntRange):
    """A whole number from `low` up to the value of `setting`, SECTION.NAME."""

    def __init__(self, low: int, setting: str) -> None:
        super().__init__(low, _MAX_INT32)  # what a number on the wire can be
        self.setting = setting


class FiniteRange(click.FloatRange):
    """A finite number from 0 up. click's own range accepts nan and inf."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def field_range(section: type[Section], name: str) -> click.IntRange:
    """Return the range that a setting itself allows."""
    bounds = section.model_fields[name].metadata
    low, high = (
        [getattr(bound, side) for bound in bounds if hasattr(bound, side)] for side in ("ge", "le")
    )
    return click.IntRange(min(low, default=None), max(high, default=None))


def check_ranges(context: click.Context, settings: Settings) -> None:
    """Raise `click.BadParameter` for an option above its setting. With --server, do nothing."""
    if context.params.get("server"):
        return
    for option in context.command.params:
        if not isinstance(option.type, SettingRange):
            continue
        value = context.params.get(option.name or "")
        section, _, name = option.type.setting.partition(".")
        maximum = int(getattr(getattr(settings, section), name))
        if value is not None and value > maximum:
            raise click.BadParameter(
                f"{value} is not in the range {option.type.min} to {maximum}. The upper bound is "
                f"the setting {option.type.setting}.",
                context,
                option,
            )


def task_argument(*, required: bool) -> Callable[[F], F]:
    """Add the argument TASK: an id or a unique prefix; None if it may be left out and is.

    No default is given here: click never requires an argument with a default, not even None.
    """
    return click.argument("task", required=required, shell_complete=tasks)


def repository_argument(command: F) -> F:
    """Give a command REPOSITORY, a registered id."""
    return click.argument("repository", shell_complete=repositories)(command)


def example(*lines: str) -> str:
    """Return the end of a command's help: commands to copy."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def repository_options(command: F) -> F:
    """Give a command --repo, --ref and --profile."""
    for option in reversed(_REPOSITORY_OPTIONS):
        command = option(command)
    return command
