"""The command line: one file a command group, imported only when its command is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from moothall import __version__

_COMMANDS = {
    "audit": "moothall.cli.audit:audit",
    "config": "moothall.cli.config:config",
    "deliberate": "moothall.cli.deliberate:deliberate",
    "demo": "moothall.cli.demo:demo",
    "doctor": "moothall.cli.doctor:doctor",
    "graph": "moothall.cli.graph:graph",
    "log": "moothall.cli.log:log",
    "repo": "moothall.cli.repo:repo",
    "serve": "moothall.cli.serve:serve",
}


class _LazyGroup(click.Group):
    """Imports a command when it is asked for, so that `moothall config` does not wait for Ray."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the signature is click's
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moothall")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.pass_context
def main(context: click.Context, config_file: Path | None) -> None:
    """Councils of agents for software work, whose answer is selected by evidence."""
    context.obj = config_file
