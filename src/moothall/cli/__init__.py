"""The command line: modules of commands that belong together, imported only when one is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from moothall import __version__

# The location and help text of each command; `moothall --help` must not import them all.
_GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Work": {
        "deliberate": (
            "deliberate:deliberate",
            "Let a council work on a task; its winner is a branch.",
        ),
        "ask": ("ask:ask", "Let one agent answer, in text or with a diff to apply."),
        "judge": ("judge:judge", "Judge a branch or pull request of someone else."),
        "verify": ("verdict_formats:verify", "Check a signed verdict, without a network."),
        "check": ("check:check", "Set up a repository and show the results of its checks."),
        "evaluate": ("evaluate:evaluate", "Measure models and councils on your own history."),
        "demo": ("demo:demo", "Watch a council of three on a sample repository."),
    },
    "Tasks": {
        "list": ("tasks:list_", "List tasks: running ones, then the latest."),
        "show": ("tasks:show", "Show a task's ranking and winner again."),
        "diff": ("tasks:diff", "Print the winner's diff, or another seat's."),
        "apply": ("tasks:apply", "Apply that diff to your files."),
        "cancel": ("tasks:cancel", "Stop a task."),
        "fork": ("deliberate:fork", "Run a task again from one of its turns."),
        "steer": ("tasks:steer", "Send a message to the seats of a running task."),
        "rm": ("tasks:rm", "Remove a task with its branch."),
    },
    "Stories": {
        "story": ("story:story", "Put stories on the board, and move them from backlog to done."),
    },
    "Agents": {
        "agents": ("agents:agents", "Check, list and run the agents that agents/*.yaml describe."),
    },
    "Repositories and disk": {
        "repo": ("repo:repo", "Register repositories, and how they are checked."),
        "clean": ("data_dir:clean", "Remove environments and checkouts, and show their sizes."),
    },
    "Server": {
        "open": ("serve:open_", "Open the page in a browser, signed in."),
        "serve": ("serve:serve", "Serve gRPC and HTTP until stopped."),
        "watch": ("serve:watch", "Answer issues of a forge with pull requests."),
        "acp": ("serve:acp", "Offer councils to an editor that speaks ACP, such as Zed."),
        "mcp": ("serve:mcp", "Offer councils to an editor or assistant that speaks MCP."),
        "account": (
            "access:account",
            "Manage the accounts that sign in at the page with a password.",
        ),
        "token": ("access:token", "Create and revoke tokens of callers of gRPC and HTTP."),
        "quota": ("access:quota", "Show and change the quotas of a tenant."),
        "executor": ("serve:executor", "Run the tools inside a workspace's container."),
        "fleet": ("doctor:fleet", "List the running hosts: machine, start time, deliberations."),
        "init": ("config:init", "Choose and test a model server, and write its settings."),
        "doctor": ("doctor:doctor", "Check every part of this machine that Moothall needs."),
        "config": ("config:config", "Print the settings and the file that they come from."),
        "completion": ("config:completion", "Print the completion script of a shell."),
        "tools": ("tools:tools", "List, enable, disable and run the agents' tools."),
        "backup": ("data_dir:backup", "Back up log, keys and repositories, also while serving."),
        "restore": ("data_dir:restore", "Restore a backup into an empty data directory."),
        "bus": ("access:bus", "Create the keys of a bus of your own."),
        "log": ("data_dir:log", "Read and prune the event log."),
        "audit": ("data_dir:audit", "Verify the record of tool calls."),
        "graph": ("graph:graph", "Show where a line comes from, and why."),
    },
}
_COMMANDS = {name: target for group in _GROUPS.values() for name, (target, _) in group.items()}


class _LazyGroup(click.Group):
    """A group that imports a command only when it is used, so that `moothall config` does not wait
    for Ray.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the signature is click's
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command = getattr(import_module(f"{__name__}.{module}"), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar one for a misspelled name."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            similar = get_close_matches(args[0], _COMMANDS, n=1)
            ctx.fail(
                f"no such command {args[0][:60]!r}"
                + (f"; did you mean {similar[0]}?" if similar else "")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the signature is click's
        """List the commands without importing them."""
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(f"{name:<10}", help_text) for name, (_, help_text) in commands.items()]
                )

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        matches = [
            (name, help_text)
            for group in _GROUPS.values()
            for name, (_, help_text) in group.items()
            if name.startswith(incomplete)
        ]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=help_text) for name, help_text in matches), *options]


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='In a repository: moothall check, then moothall deliberate "Fix the failing test".',
)
@click.version_option(__version__, prog_name="moothall")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Settings file (TOML) to use instead of the default one.",
)
@click.option("--no-color", is_flag=True, help="Print without colours, as with NO_COLOR.")
@click.pass_context
def main(context: click.Context, config_file: Path | None, *, no_color: bool) -> None:
    """Councils of agents for software work, whose answer is selected by evidence."""
    context.obj = config_file
    import os

    if no_color:
        os.environ["NO_COLOR"] = "1"  # rich and child processes read it
    if os.environ.get("NO_COLOR"):
        context.color = False  # click's own setting
