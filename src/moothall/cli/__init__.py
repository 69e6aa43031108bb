"""The command line: one file a command group, imported only when its command is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from moothall import __version__

# Where each is, and what `moothall --help` says of it: that must not import them all.
_COMMANDS = {
    "ask": ("moothall.cli.ask:ask", "Let one agent answer PROMPT: a question with words, a task with a diff..."),
    "audit": ("moothall.cli.audit:audit", "The audit of tool calls."),
    "config": ("moothall.cli.config:config", "Print the effective settings; secrets are redacted."),
    "deliberate": ("moothall.cli.deliberate:deliberate", "Let a council work on TASK and leave the winner as branch..."),
    "demo": ("moothall.cli.demo:demo", "A council of three adds a function to a sample repository whose test..."),
    "doctor": ("moothall.cli.doctor:doctor", "Try every part of this machine that Moothall needs."),
    "graph": ("moothall.cli.graph:graph", "The context graph: where lines come from, what was decided and why."),
    "log": ("moothall.cli.log:log", "The event log: what happened, in order."),
    "repo": ("moothall.cli.repo:repo", "Registered repositories: the API names them by id."),
    "tools": ("moothall.cli.tools:tools", "The catalogue of tools, and which of them a tenant's agents are offered."),
    "serve": ("moothall.cli.serve:serve", "Serve gRPC (councils, tools, the kernel for one agent, the code runner),..."),
}


class _LazyGroup(click.Group):
    """Imports a command when it is asked for, so that `moothall config` does not wait for Ray."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the signature is click's
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moothall")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.pass_context
def main(context: click.Context, config_file: Path | None) -> None:
    """Councils of agents for software work, whose answer is selected by evidence."""
    context.obj = config_file
