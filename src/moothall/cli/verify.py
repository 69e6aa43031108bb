"""`moothall verify`: check a signed verdict."""

from __future__ import annotations

from pathlib import Path

import click

from moothall.cli.options import example, json_option
from moothall.cli.runtime import EXIT_NONE, EXIT_UNPROVEN, plain, print_json, say, with_settings
from moothall.cli.verdict import LEVELS
from moothall.config import Settings


@click.command(
    epilog=example(
        "moothall verify verdict.json --key judge.pub",
        "moothall verify verdict.json --key judge.pub --commit HEAD_SHA --require reproduced",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Public Ed25519 key (PEM) of the judge; by default that of the data directory.",
)
@click.option("--commit", default="", help="Full id of the commit that the verdict must be about.")
@click.option(
    "--require",
    "required",
    type=click.Choice(LEVELS),
    default=None,
    help="Lowest level of evidence for exit code 0; by default the one that was required.",
)
@json_option
@with_settings()
async def verify(
    settings: Settings,
    *,
    file: Path,
    key: Path | None,
    commit: str,
    required: str | None,
    as_json: bool,
) -> int:
    """Check that FILE is a verdict that the holder of a key signed, without a network.

    Exit codes: 0 the signature holds and the change was accepted, 3 the signature holds and the
    change was not accepted, 1 the statement does not hold, 2 wrong use.
    """
    from moothall.cli.statement import (
        InvalidStatement,
        load_public_key,
        read_statement,
        verify_statement,
    )

    raw, public_key = read_statement(file), load_public_key(key, settings.data_dir)
    try:
        statement = verify_statement(raw, public_key)
    except InvalidStatement as error:
        say(f"moothall: {file} does not hold: {error}")
        return EXIT_NONE
    subject = statement["subject"][0]["digest"]["gitCommit"]
    if commit and commit != subject:
        say(f"moothall: {file} is about {subject}, not about {plain(commit)}")
        return EXIT_NONE
    verdict = statement["predicate"]
    level, finding = verdict["level"], verdict["finding"]
    accepted = finding == "passed" and LEVELS.index(level) >= LEVELS.index(
        required or verdict["required"]
    )
    if as_json:
        print_json(statement)
    else:
        click.echo(
            plain(
                f"Signed: {subject} on {verdict['base']}: {finding}, "
                f"{level or 'no level'}, judged at {verdict['judged_at']}"
            )
        )
    return 0 if accepted else EXIT_UNPROVEN
