"""Templates, and safe output of foreign text in them: escaped, without control and direction
characters. Syntax colours of diffs: lines as pieces of text with a CSS class.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType, is_token_subtype
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moothall.api.web.charts import Chart, brief
from moothall.collector.timeline import MODEL_KINDS, ModelCall
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import digest
from moothall.domain.outcome import Outcome
from moothall.stories.diff_lines import DiffFile, DiffLine, read_files
from moothall.stories.lifecycle import lifecycle

# Syntax colours of diffs: lines as pieces of text with a CSS class. Text is never markup here; the
# templates escape each piece.


_LEXERS = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".hpp": "cpp",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".jsx": "javascript",
    ".kt": "kotlin",
    ".mjs": "javascript",
    ".proto": "protobuf",
    ".py": "python",
    ".pyi": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".scala": "scala",
    ".sh": "bash",
    ".sql": "sql",
    ".swift": "swift",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "typescript",
    ".yaml": "yaml",
    ".yml": "yaml",
    "Dockerfile": "docker",
    "Makefile": "make",
}
"""Lexers by file ending or name. Others are left out: a slow one would hold up the server."""
_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "hc"),
    (Keyword, "hk"),
    (String, "hs"),
    (Number, "hn"),
    (Name.Function, "hf"),
    (Name.Class, "hf"),
    (Name.Decorator, "hf"),
    (Name.Tag, "hk"),
    (Name.Attribute, "hf"),
    (Name.Builtin, "hn"),
)
_MAX_CHARS = 100_000
_MAX_LINE_CHARS = 400
"""Longer lines have no colours: they are minified code, which is slow to parse and never read."""

_PREPARED = ("python", "javascript", "typescript", "go", "java", "rust")
"""The languages of most repositories: preparing all takes more than half a second."""

Piece = tuple[str, str]
"""A CSS class, '' for none, and a text."""


def prepare_lexers() -> None:
    """Compile the lexers of the most common languages, so that no request waits for it."""
    for name in _PREPARED:
        get_lexer_by_name(name)


@lru_cache(maxsize=128)
def highlight(
    file: DiffFile, start: int = 0, count: int | None = None
) -> Mapping[int, Sequence[Piece]]:
    """Return `count` lines of a file from the index `start` with colours, by their numbers in the
    diff and without their signs. Return an empty mapping for an unknown language or long text.
    """
    path = PurePosixPath(file.path)
    name = _LEXERS.get(path.suffix.lower()) or _LEXERS.get(path.name)
    chosen = file.lines[start : None if count is None else start + count]
    if name is None or sum(len(line.text) for _, line in chosen) > _MAX_CHARS:
        return {}
    lines: dict[int, Sequence[Piece]] = {}
    for kinds in ({"same", "removed"}, {"same", "added"}):
        side = [(number, line) for number, line in chosen if line.kind in kinds]
        if side:
            lines |= zip((number for number, _ in side), _colour(name, side), strict=True)
    return lines


def _colour(lexer_name: str, side: Sequence[tuple[int, DiffLine]]) -> Iterator[Sequence[Piece]]:
    """Yield the pieces of each line of one side of a diff."""
    texts = [line.text[1:] for _, line in side]
    source = "\n".join(text if len(text) <= _MAX_LINE_CHARS else "" for text in texts)
    pieces: list[list[Piece]] = [[]]
    lexer = get_lexer_by_name(lexer_name)
    for _, token, value in lexer.get_tokens_unprocessed(source):
        tone = _class_of(token)
        first, *further_lines = value.split("\n")
        last = pieces[-1]
        if last and last[-1][0] == tone:
            last[-1] = tone, last[-1][1] + first
        else:
            last.append((tone, first))
        pieces += [[(tone, text)] for text in further_lines]
    for text, line_pieces in zip(texts, pieces, strict=True):
        yield line_pieces if len(text) <= _MAX_LINE_CHARS else [("", text)]


@cache
def _class_of(token: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if is_token_subtype(token, parent)), "")


# Templates, and safe output of foreign text in them: escaped, without control and direction
# characters.


_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src "
        "'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # with no-referrer, browsers send forms without an origin, which the server refuses
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
"""Characters that are invisible or change the direction. The two joiners (U+200C, U+200D) are part
of words and emoji between characters that are not ASCII.
"""
REFRESH_SECONDS = 3
"""Seconds after which a page of running work is loaded again."""
MAX_DIFF_LINES = 200
"""Lines of a diff that a page shows at once; the others are shown on demand."""
_MAX_TEXT_CHARS = 200_000
"""Characters of a message or of an output that a page shows."""
ASSET_TYPES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "board.js": "text/javascript",
    "navigation.css": "text/css",
    "navigation.js": "text/javascript",
    "icons.svg": "image/svg+xml",
    "icon.svg": "image/svg+xml",
}


def visible(value: Any) -> str:
    """Return text escaped and with invisible characters made visible. Markup from templates is
    unchanged.
    """
    if isinstance(value, Markup):
        return value
    return escape(make_visible(str(value)))


def make_visible(text: str) -> str:
    """Return text with invisible characters made visible, without escaping."""
    if text.isprintable():  # the usual case, and much faster
        return text
    return _CONTROL.sub(
        lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n")
    )


def span(seconds: float) -> str:
    """Return a duration in words."""
    total = max(0, int(seconds))
    minutes, seconds_left = divmod(total, 60)
    hours, minutes_left = divmod(minutes, 60)
    return (
        f"{hours} h {minutes_left:02} min"
        if hours
        else f"{minutes} min {seconds_left:02} s"
        if minutes
        else f"{total} s"
    )


def moment(time: str, style: str = "") -> Markup:
    """Return a point in time as an element, in UTC. The script shows it in the reader's time zone,
    or with the style "ago" as an age.
    """
    text = time[:16].replace("T", " ")
    return Markup('<time datetime="{}" class="{}">{} UTC</time>').format(time[:40], style, text)


def coloured(pieces: Sequence[Piece]) -> Markup:
    """Return a line of code with the colours of its pieces."""
    texts = ((tone, escape(make_visible(text))) for tone, text in pieces)
    spans = (f'<span class="{tone}">{text}</span>' if tone else text for tone, text in texts)
    return Markup("".join(spans))  # noqa: S704 - the texts are escaped


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


_TEMPLATES = Environment(
    loader=PackageLoader("moothall.api.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=visible,
)
_TEMPLATES.filters |= {
    "read_files": read_files,
    "highlight": highlight,
    "coloured": coloured,
    "fingerprint": lambda file: digest(file.path, file.text)[:16],
    "shown": _json,
    "span": span,
    "moment": moment,
    "brief": brief,
}


class Page(Response):
    """A page of a template. It is rendered in a thread, because a page may be large and the server
    has one event loop for all requests.
    """

    def __init__(self, template: str, status: int, variables: Mapping[str, Any]) -> None:
        super().__init__(b"", status, _HEADERS, "text/html")
        self._template, self._variables = template, variables

    async def render_body(self) -> None:
        """Render the body, if that is not done yet. Raises what the template raises."""
        if not self.body:
            self.body = await asyncio.to_thread(self._render)
            self.headers["Content-Length"] = str(len(self.body))

    def _render(self) -> bytes:
        return _TEMPLATES.get_template(self._template).render(self._variables).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page."""
        await self.render_body()
        await super().__call__(scope, receive, send)


async def prepare(response: Response) -> Response:
    """Return a response whose body is known. Raises what the template of a page raises."""
    if isinstance(response, Page):
        await response.render_body()
    return response


def compile_templates() -> None:
    """Compile all templates, so that no request waits for it. It takes half a second."""
    for name in _TEMPLATES.list_templates():
        _TEMPLATES.get_template(name)


def page(template: str, status: int = 200, **context: Any) -> Page:
    """Return a page. `seq` is that of the last event that the page shows, `story_id` the only story
    whose events change it.
    """
    variables = {
        "session": None,
        "refresh": 0,
        "changes": "/changes",
        "growing": "",
        "seq": "",
        "story_id": "",
        "first_steps": (),
        "onward": "",
        "failed": status >= HTTPStatus.BAD_REQUEST,
    } | context
    return Page(template, status, variables)


def json_document(value: Any) -> Response:
    """Return a document for the script. Invisible characters in its texts are made visible."""
    return Response(make_visible(_json(value)), 200, _HEADERS, "application/json")


def fragment(content: Markup) -> Response:
    """Return a part of a page, for the script to put into the page."""
    return Response(content, 200, _HEADERS, "text/html")


def report(
    title: str, outcome: Outcome, chart: Chart | None, calls: Mapping[str, ModelCall]
) -> str:
    """Return a deliberation as one HTML document that needs no server: its timeline and ranking.
    What prompts share is written once.
    """
    bars = [bar for row in chart.rows for bar in row.bars] if chart else []
    return _TEMPLATES.get_template("timeline_file.html").render(
        title=title,
        outcome=outcome,
        chart=chart,
        steps="open",
        calls=calls,
        numbers={bar.block.call: bar.number for bar in bars if bar.block.kind in MODEL_KINDS},
        full=False,
        stylesheet=Markup(_asset_text("page.css")),  # noqa: S704 - our own file
    )


def part(template: str, **context: Any) -> Markup:
    """Render a part of a page, to pass to `page`."""
    return Markup(_TEMPLATES.get_template(template).render(context))  # noqa: S704 - the template escaped it


def asset(name: str) -> Response:
    """Return a stylesheet, script or icon. Browsers keep it: its URL has its hash."""
    headers = {**_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_asset_text(name), 200, headers, ASSET_TYPES[name])


@cache
def asset_url(name: str) -> str:
    """Return the URL of an asset, which changes with its content."""
    return f"/{name}?v={hashlib.sha256(_asset_text(name).encode()).hexdigest()[:16]}"


@cache
def _asset_text(name: str) -> str:
    return _TEMPLATES.get_template(name).render()


@cache
def _icon(name: str) -> Markup:
    """Return an icon of the sprite. Screen readers skip it: the text beside it says the same."""
    url = asset_url("icons.svg")
    return Markup('<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>').format(
        url, name
    )


def _level_label(words: str) -> Markup:
    """Return a label with the words of a level of evidence."""
    independent = {level.words for level in EvidenceLevel if level.independent}
    return Markup('<span class="level{}">{}</span>').format(
        " independent" if words in independent else "", words
    )


_TEMPLATES.globals |= {
    "asset_url": asset_url,
    "icon": _icon,
    "level_label": _level_label,
    "max_lines": MAX_DIFF_LINES,
    "max_text": _MAX_TEXT_CHARS,
    "lifecycle": lifecycle,
    "evidence_levels": tuple(EvidenceLevel),
}


def redirect(path: str) -> Response:
    """Redirect a browser to another page of the server."""
    return Response(status_code=303, headers={**_HEADERS, "Location": path})
