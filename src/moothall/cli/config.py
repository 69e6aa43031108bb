"""`moothall config`: the effective settings."""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import BaseModel

from moothall.cli.run import errors_spoken, settings_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
@errors_spoken
def config(context: click.Context, as_json: bool) -> None:  # noqa: FBT001 - a flag of click's
    """Print the effective settings; secrets are redacted."""
    settings = settings_of(context)
    values = settings.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    for line in _lines(values, settings, "MOOTHALL_"):
        click.echo(line)


def _lines(values: dict[str, Any], model: BaseModel, prefix: str) -> list[str]:
    lines = []
    for name, value in values.items():
        inner = getattr(model, name)
        if isinstance(inner, BaseModel):
            lines += _lines(value, inner, f"{prefix}{name.upper()}__")
        else:
            about = type(model).model_fields[name].description
            lines.append(f"{prefix}{name.upper()}={'' if value is None else value}" + (f"    # {about}" if about else ""))
    return lines
