"""A verdict for people and for other programs: on the terminal, as Markdown, as SARIF 2.1.0, and as
a signed in-toto statement. `moothall verify`: check a signed verdict. Most of its text is foreign.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel, Field, ValidationError
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from moothall import __version__
from moothall.cli.options import example, json_option
from moothall.cli.runtime import (
    EXIT_NONE,
    EXIT_UNPROVEN,
    plain,
    print_json,
    print_status,
    with_settings,
)
from moothall.cli.verdict import LEVELS, CheckResult, MatrixRow, VerdictDocument
from moothall.config import Settings
from moothall.domain.codec import dump
from moothall.domain.ids import digest
from moothall.domain.task import CHANGE
from moothall.errors import ConfigurationError, InvalidRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


# A verdict for people: on the terminal, and as Markdown.


_GOOD, _BAD, _WARNING, _DIM = "green", "red", "yellow", "dim"
_MAX_ROWS, _MAX_LINES = 20, 10
_STYLES = {"passed": _GOOD, "failed": _BAD}


def headline(verdict: VerdictDocument) -> str:
    """Return the verdict in one line."""
    about = f"{verdict.head[:12]} on {verdict.base[:12]}"
    if verdict.finding == "none":
        return f"No verdict on {about}: {verdict.error}"
    if verdict.finding == "broken":
        return f"Broken: {about}"
    if verdict.finding == "disputed":
        return f"Disputed: {about} fails only tests that it edits or deletes; a person decides"
    short = "" if verdict.accepted else f", below the required {verdict.required}"
    return f"{verdict.level.capitalize()}: {about} breaks nothing{short}"


def show_verdict(console: Console, verdict: VerdictDocument) -> None:
    """Print a verdict: its line, reasons, checks, the tests that tell base and change apart, and
    what was not judged.
    """
    console.print(Rule(plain(f"{verdict.task_id}: verdict")))
    console.print(Text(plain(headline(verdict)), style=f"bold {_style_of(verdict)}"))
    if verdict.finding == "none":
        return
    task = " ".join(verdict.task.split())
    console.print(Text(f"Task: {plain(task, 200)}", style=_DIM))
    for reason in verdict.reasons:
        console.print(Padding(Text(plain(reason)), (0, 0, 0, 3), expand=False))
    if verdict.checks:
        console.print(_check_table(verdict.checks))
    if verdict.matrix:
        console.print(_matrix_table(verdict.matrix))
    for title, lines in _sections(verdict):
        console.print(Text(title, style="bold cyan"))
        for line in lines[:_MAX_LINES]:
            console.print(Padding(Text(plain(line)), (0, 0, 0, 3), expand=False))
        if len(lines) > _MAX_LINES:
            console.print(Padding(Text(f"and {len(lines) - _MAX_LINES} more"), (0, 0, 0, 3)))


def _style_of(verdict: VerdictDocument) -> str:
    if verdict.finding == "passed":
        return _GOOD if verdict.accepted else _WARNING
    return _WARNING if verdict.finding == "disputed" else _BAD


def _check_table(checks: tuple[CheckResult, ...]) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("check", "verdict", "passed", "failed", "failed before", "skipped"):
        table.add_column(heading)
    for item in checks:
        counts = (item.passed, item.failed, item.before, item.skipped)
        style = _STYLES.get(item.verdict, _WARNING)
        table.add_row(
            plain(item.check, 60), Text(item.verdict, style=style), *(str(n or "·") for n in counts)
        )
    return table


def _matrix_table(rows: tuple[MatrixRow, ...]) -> Table:
    answers = sorted({answer for row in rows for answer in row.results}, key=_change_first)
    title = "Tests that tell the base and the answers apart"
    if len(rows) > _MAX_ROWS:
        title += f" (the first {_MAX_ROWS} of {len(rows)})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in ("written by", "test", "base", *answers):
        table.add_column(plain(heading, 40), overflow="fold")
    for row in rows[:_MAX_ROWS]:
        outcomes = [row.base, *(row.results.get(answer, "·") for answer in answers)]
        table.add_row(
            plain(row.author, 40),
            Text(plain(row.case, 160)),
            *(Text(outcome, style=_STYLES.get(outcome, _DIM)) for outcome in outcomes),
        )
    return table


def _change_first(answer: str) -> tuple[bool, str]:
    return answer != CHANGE, answer


def _sections(verdict: VerdictDocument) -> Iterator[tuple[str, tuple[str, ...]]]:
    if verdict.unnoticed:
        yield "No test fails without", verdict.unnoticed
    if verdict.look:
        yield "A person should look", verdict.look
    if verdict.reviews:
        lines = tuple(
            f"{review.reviewer} {review.score:.2f}: {' '.join(review.comment.split())}"
            for review in verdict.reviews
        )
        yield "Reviews", lines
    if verdict.rivals:
        lines = tuple(
            f"{rival.seat}: rank {rival.rank}, {rival.level}, "
            f"{'passes' if rival.passed else 'fails'} the acceptance checks, {rival.lines} lines"
            for rival in verdict.rivals
        )
        yield f"Rivals (the change has rank {verdict.rank})", lines
    if verdict.not_judged:
        yield "Not judged", verdict.not_judged


def verdict_markdown(verdict: VerdictDocument) -> str:
    """Return a verdict as Markdown, for the summary of a pipeline. Foreign text is escaped."""
    from moothall.forge.texts import text

    lines = [f"### Moothall: {text(headline(verdict))}", ""]
    lines += [f"- {text(reason)}" for reason in verdict.reasons]
    for title, items in _sections(verdict):
        lines += ["", f"**{text(title)}**", "", *(f"- {text(item)}" for item in items)]
    return "\n".join([*lines, "", ""])


# A verdict as SARIF 2.1.0, which forges and editors show beside the code.


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    "broken-test": "A test that passed on the base fails.",
    "failed-check": "A check of the repository fails.",
    "edited-test": "A test fails that the change edits or deletes.",
    "unnoticed": "No test fails without these lines.",
    "look": "A person should look at this line.",
    "review": "A review of the change.",
    "verdict": "The verdict on the change.",
}
_PLACE = re.compile(
    r"^(?P<path>[^:]+?)(?: \(new\)|:(?P<first>\d+)(?:-(?P<last>\d+))?)(?:: (?P<text>.*))?$"
)
_CASE_FILE = re.compile(r"^(?P<path>[\w./-]+\.\w+)(?:::| > |$)")
_MESSAGE_CHARS = 1_000


def sarif_document(verdict: VerdictDocument) -> str:
    """Return the findings of a verdict as a SARIF log."""
    level = {"passed": "note", "disputed": "warning"}.get(verdict.finding, "error")
    results = [_result("verdict", level, headline(verdict)), *findings(verdict)]
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "moothall judge",
                        "version": __version__,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": text}}
                            for rule, text in _RULES.items()
                        ],
                    }
                },
                "versionControlProvenance": [
                    {"repositoryUri": verdict.repository, "revisionId": verdict.head}
                ],
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def findings(verdict: VerdictDocument) -> Iterator[dict[str, Any]]:
    """Yield the findings of a verdict as results of SARIF."""
    broken_cases = [
        row.case
        for row in verdict.matrix
        if row.base == "passed" and "failed" in row.results.values()
    ]
    for case in broken_cases:
        rule, level = (
            ("edited-test", "warning") if case in verdict.edited_tests else ("broken-test", "error")
        )
        yield _result(rule, level, f"It passed on the base and fails: {case}", _place_of_case(case))
    for check in verdict.checks:
        if check.verdict != "passed" and verdict.finding == "broken" and not check.before:
            failures = ", ".join(check.new_failures[:5]) or check.why
            yield _result("failed-check", "error", f"{check.check} {check.verdict}: {failures}")
    for place in verdict.unnoticed:
        yield _result("unnoticed", "note", _RULES["unnoticed"], _place(place))
    for line in verdict.look:
        match = _PLACE.match(line)
        yield _result("look", "note", (match and match["text"]) or line, _place(line))
    for review in verdict.reviews:
        message = f"{review.reviewer} {review.score:.2f}: {review.comment}"
        yield _result("review", "note", message)


def _result(
    rule: str, level: str, message: str, place: dict[str, Any] | None = None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": rule,
        "level": level,
        "message": {"text": plain(message, _MESSAGE_CHARS)},
    }
    if place is not None:
        result["locations"] = [{"physicalLocation": place}]
    return result


def _place(text: str) -> dict[str, Any] | None:
    """Return the location in a line such as `src/a.py:3-7: text`; None if it names none."""
    match = _PLACE.match(text)
    if match is None:
        return None
    place: dict[str, Any] = {"artifactLocation": {"uri": match["path"]}}
    if match["first"]:
        place["region"] = {
            "startLine": int(match["first"]),
            "endLine": int(match["last"] or match["first"]),
        }
    return place


def _place_of_case(case: str) -> dict[str, Any] | None:
    match = _CASE_FILE.match(case)
    return {"artifactLocation": {"uri": match["path"]}} if match else None


# A verdict as a signed in-toto statement in a DSSE envelope, and its verification, which needs no
# network.


STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:moothall:verdict:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_PRIVATE_NAME, _PUBLIC_NAME = "judge.key", "judge.pub"
_MAX_BYTES = 20_000_000
_KEY_BYTES = 20_000


class _Signature(BaseModel):
    keyid: str
    sig: str


class _Envelope(BaseModel):
    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: list[_Signature]


class InvalidStatement(Exception):
    """A statement that is not valid: it was changed, or signed with another key."""


def sign_verdict(verdict: VerdictDocument, key: Ed25519PrivateKey) -> str:
    """Return the signed statement about the commit of a verdict."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": verdict.repository or "repository", "digest": {"gitCommit": verdict.head}}
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"judge": {"name": "moothall", "version": __version__}, **dump(verdict)},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(_signed_bytes(PAYLOAD_TYPE, payload))
    return _serialize(payload, _key_id(key.public_key()), signature)


def verify_statement(raw: bytes, key: Ed25519PublicKey) -> dict[str, Any]:
    """Return the statement in an envelope that `key` signed. Raises `InvalidStatement`.

    The envelope must have the bytes that `sign_verdict` writes, so that no byte can be changed,
    not even one that the signature does not cover.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        envelope = _Envelope.model_validate_json(raw)
        payload = base64.b64decode(envelope.payload, validate=True)
        (signature,) = envelope.signatures
        signature_bytes = base64.b64decode(signature.sig, validate=True)
    except (ValidationError, binascii.Error, ValueError) as error:
        raise InvalidStatement("it is not a DSSE envelope with one signature") from error
    if signature.keyid != _key_id(key):
        raise InvalidStatement("it is signed with another key, or was changed")
    try:
        key.verify(signature_bytes, _signed_bytes(envelope.payload_type, payload))
    except InvalidSignature as error:
        raise InvalidStatement("its signature is invalid: it was changed") from error
    # Base64 has several texts for the same bytes.
    if _serialize(payload, signature.keyid, signature_bytes).encode() != raw:
        raise InvalidStatement("its envelope was changed")
    statement = json.loads(payload)
    if statement.get("predicateType") != PREDICATE_TYPE:
        raise InvalidStatement("it is signed, but it is not a verdict of Moothall")
    return dict(statement)


def load_signing_key(path: Path | None, data_dir: Path) -> Ed25519PrivateKey:
    """Return the private key in a PEM file, by default that of the data directory, which is created
    if it does not exist. Raises `ConfigurationError`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if path is None:
        path = data_dir / _PRIVATE_NAME
        if not path.exists():
            _create_key(path, data_dir / _PUBLIC_NAME)
    try:
        key = load_pem_private_key(_read_file(path, _KEY_BYTES), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} is not an unencrypted private key in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            f"{path} is not an Ed25519 key; create one: openssl genpkey -algorithm ed25519 -out "
            f"{path}"
        )
    return key


def load_public_key(path: Path | None, data_dir: Path) -> Ed25519PublicKey:
    """Return the public key in a PEM file, by default that of the data directory. Raises
    `ConfigurationError`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if path is None:
        path = data_dir / _PUBLIC_NAME
        if not path.exists():
            raise ConfigurationError(
                "no public key: name that of the judge with --key; this data directory has signed "
                "nothing yet"
            )
    try:
        key = load_pem_public_key(_read_file(path, _KEY_BYTES))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path} is not an Ed25519 key")
    return key


def read_statement(path: Path) -> bytes:
    """Return the bytes of a statement's file. Raises `InvalidRequest`."""
    try:
        return _read_file(path, _MAX_BYTES)
    except ConfigurationError as error:
        raise InvalidRequest(error.message) from error


def _read_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ConfigurationError(f"{path} has more than {limit:,} bytes")
    return content


def _create_key(path: Path, public_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public_path.write_bytes(public)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)


def _key_id(key: Ed25519PublicKey) -> str:
    return digest(key.public_bytes_raw().hex())


def _signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return the pre-authentication encoding of DSSE."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _serialize(payload: bytes, key_id: str, signature: bytes) -> str:
    """Return the text of an envelope."""
    envelope = _Envelope(
        payload=base64.b64encode(payload).decode(),
        payloadType=PAYLOAD_TYPE,
        signatures=[_Signature(keyid=key_id, sig=base64.b64encode(signature).decode())],
    )
    return envelope.model_dump_json(by_alias=True, indent=2) + "\n"


# `moothall verify`: check a signed verdict.


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
    change was not accepted, 1 the statement is not valid, 2 wrong use.
    """
    raw, public_key = read_statement(file), load_public_key(key, settings.data_dir)
    try:
        statement = verify_statement(raw, public_key)
    except InvalidStatement as error:
        print_status(f"moothall: {file} is not valid: {error}")
        return EXIT_NONE
    subject = statement["subject"][0]["digest"]["gitCommit"]
    if commit and commit != subject:
        print_status(f"moothall: {file} is about {subject}, not about {plain(commit)}")
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
