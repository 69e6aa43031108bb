"""The change and the task that the URL of a pull request or an issue names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moothall.cli.sarif import findings
from moothall.cli.verdict import VerdictDocument
from moothall.cli.verdict_text import headline, verdict_markdown
from moothall.config import ForgeSettings, Settings
from moothall.domain.identity import LOCAL
from moothall.errors import InvalidRequest, NotFound, Refused

_PULL = re.compile(
    r"^(?P<root>https?://[^/?#@\s]+)/(?P<name>[^/\s]+/[^/\s]+)/pulls?/(?P<number>\d+)"
)
_ISSUE = re.compile(
    r"^(?P<root>https?://[^/?#@\s]+)/(?P<name>[^/\s]+/[^/\s]+)/issues/(?P<number>\d+)"
)


_STATUS_CONTEXT, _STATUS_CHARS, _SUMMARY_CHARS = "moothall/judge", 140, 60_000
_MAX_ANNOTATIONS = 50  # of a request; GitHub refuses more
_ANNOTATION_LEVELS = {"error": "failure", "warning": "warning", "note": "notice"}


@dataclass(frozen=True, slots=True)
class JudgedPull:
    """A pull request: its repository (an id or URL), the refs of base and head, and its text."""

    repository: str
    base: str
    head: str
    task: str


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an issue or pull request: its forge, its repository (owner/name), its number."""

    forge: ForgeSettings
    name: str
    number: int


async def read_pull(settings: Settings, url: str) -> JudgedPull:
    """Return the pull request at a URL. Raises `InvalidRequest`, and errors of the forge."""
    from moothall.forge.client import forge_client

    place = _locate(settings, _PULL, url, "a pull request, such as https://HOST/OWNER/NAME/pull/7")
    async with forge_client(place.forge, anonymous=True) as client:
        pull = await client.pull(place.name, place.number)
        return JudgedPull(
            await _register(settings, place),
            pull.onto,
            # The branch of a fork is in another repository; the forge offers it here too.
            f"refs/pull/{place.number}/head",
            _text(pull.title, pull.body),
        )


async def set_status(settings: Settings, url: str, verdict: VerdictDocument) -> None:
    """Publish the verdict on the pull request at a URL: as a check run with annotations, if the
    forge has these and the token may create them, else as a commit status. Raises
    `ConfigurationError` without a token for its forge, and errors of the forge.
    """
    from moothall.forge.client import forge_client

    place = _locate(settings, _PULL, url, "a pull request")
    conclusion, title = "success" if verdict.accepted else "failure", headline(verdict)
    async with forge_client(place.forge) as client:
        if place.forge.kind == "github":
            output = {
                "title": title[:_STATUS_CHARS],
                "summary": verdict_markdown(verdict)[:_SUMMARY_CHARS],
                "annotations": list(_annotations(verdict))[:_MAX_ANNOTATIONS],
            }
            # Only the tokens of a GitHub App may create check runs, not those of a person.
            with suppress(Refused, NotFound):
                await client.create_check_run(
                    place.name,
                    verdict.head,
                    name=_STATUS_CONTEXT,
                    conclusion=conclusion,
                    output=output,
                )
                return
        await client.set_status(
            place.name, verdict.head, conclusion, _STATUS_CONTEXT, title[:_STATUS_CHARS]
        )


def _annotations(verdict: VerdictDocument) -> Iterator[Mapping[str, Any]]:
    """Yield the findings that are about lines of a file, or about the whole file, as annotations
    of a check run.
    """
    for finding in findings(verdict):
        for location in finding.get("locations", ()):
            place = location["physicalLocation"]
            region = place.get("region", {"startLine": 1, "endLine": 1})
            yield {
                "path": place["artifactLocation"]["uri"],
                "start_line": region["startLine"],
                "end_line": region["endLine"],
                "annotation_level": _ANNOTATION_LEVELS[finding["level"]],
                "message": finding["message"]["text"],
            }


async def read_issue(settings: Settings, url: str) -> str:
    """Return the text of the issue at a URL. Raises `InvalidRequest` and what the forge's client
    raises.
    """
    from moothall.forge.client import forge_client

    place = _locate(settings, _ISSUE, url, "an issue, such as https://HOST/OWNER/NAME/issues/7")
    async with forge_client(place.forge, anonymous=True) as client:
        issue = await client.issue(place.name, place.number)
    return _text(issue.title, issue.body)


def _text(title: str, body: str) -> str:
    return "\n\n".join(part.strip() for part in (title, body) if part.strip())


def _locate(settings: Settings, pattern: re.Pattern[str], url: str, expected: str) -> _Place:
    """Return the place that a URL names. Only the configured forge receives the token."""
    configured = settings.forge
    root = configured.url.rstrip("/")
    prefix, rest = (root, url[len(root) :]) if url.startswith(f"{root}/") else ("", "")
    match = pattern.match(f"https://forge{rest}" if prefix else url)
    if match is None:
        raise InvalidRequest(f"{url[:200]!r} is not the URL of {expected}")
    if prefix:
        return _Place(configured, match["name"], int(match["number"]))
    host = urlsplit(match["root"]).hostname
    forge = ForgeSettings(kind="github" if host == "github.com" else "gitea", url=match["root"])
    return _Place(forge, match["name"], int(match["number"]))


async def _register(settings: Settings, place: _Place) -> str:
    """Return the id of the repository at the configured forge, which may need a credential, or the
    URL of another one.
    """
    from moothall.app.repositories import trusted_repositories
    from moothall.cli.watch import credential_of

    url = f"{place.forge.url.rstrip('/')}/{place.name}.git"
    if place.forge is not settings.forge or settings.forge.token is None:
        return url
    registry = trusted_repositories(settings)
    known = registry.registry.of_origin(url, LOCAL.tenant)
    credential = (known.credential if known else "") or credential_of(settings.forge)
    return (await registry.register(url, credential=credential)).id
