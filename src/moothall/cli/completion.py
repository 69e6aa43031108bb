"""`moothall completion`: completion scripts for shells."""

from __future__ import annotations

import click

from moothall.cli.options import example
from moothall.cli.runtime import report_errors


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
