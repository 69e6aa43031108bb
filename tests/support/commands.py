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
        below = command.get_command(click.Context(command), name)
        assert below is not None
        yield from leaves(below, (*path, name))
