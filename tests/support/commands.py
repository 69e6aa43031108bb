"""The commands of the CLI."""

from __future__ import annotations

from collections.abc import Iterator

import click


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands below a command, groups left out, with their paths."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None
        yield from leaves(subcommand, (*path, name))
