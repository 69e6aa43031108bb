"""`moothall config`: the effective settings. `moothall completion`: completion scripts for
shells.
"""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import BaseModel

from moothall.cli.options import example, json_option
from moothall.cli.runtime import file_of, report_errors, settings_of
from moothall.config import default_file

# `moothall config`: the effective settings.


@click.command(epilog=example("moothall config | grep LLM", "moothall --config ci.toml config"))
@json_option
@click.pass_context
@report_errors
def config(context: click.Context, as_json: bool) -> None:  # noqa: FBT001 - a flag of click's
    """Print the effective settings and the file that they come from; secrets are redacted.

    A setting of the environment (MOOTHALL_LLM__MODEL) goes before the file ([llm] model = …), that
    before the default. A secret can be in a file: MOOTHALL_LLM__API_KEY_FILE, or api_key_file.
    """
    settings = settings_of(context)
    values = settings.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps({"version": 1, **values}, indent=2))
        return
    file = file_of(context)
    click.echo(
        f"# {f'read from {file}' if file else f'no file was read; {default_file()} would be'}"
    )
    for line in _lines(values, settings, "MOOTHALL_"):
        click.echo(line)


def _lines(values: dict[str, Any], model: BaseModel, prefix: str) -> list[str]:
    lines = []
    for name, value in values.items():
        section = getattr(model, name)
        if isinstance(section, BaseModel):
            lines += _lines(value, section, f"{prefix}{name.upper()}__")
        else:
            value = json.dumps(value) if isinstance(value, dict) else value  # noqa: PLW2901 - as the environment takes it
            description = type(model).model_fields[name].description
            lines.append(
                f"{prefix}{name.upper()}={'' if value is None else value}"
                + (f"    # {description}" if description else "")
            )
    return lines


# `moothall completion`: completion scripts for shells.


@click.command(
    epilog=example(
        'eval "$(moothall completion bash)"',
        "moothall completion fish > ~/.config/fish/completions/moothall.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@report_errors
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script of SHELL: commands, options, task and repository ids, roles,
    protocols.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise AssertionError(shell)
    root = context.find_root()
    click.echo(completion_class(root.command, {}, "moothall", "_MOOTHALL_COMPLETE").source())
