"""Syntax colours of diffs: lines as pieces of text with a CSS class. Text is never markup here; the
templates escape each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import PurePosixPath

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType, is_token_subtype

from moothall.stories.diffs import DiffFile, DiffLine

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
        first, *others = value.split("\n")
        last = pieces[-1]
        if last and last[-1][0] == tone:
            last[-1] = tone, last[-1][1] + first
        else:
            last.append((tone, first))
        pieces += [[(tone, text)] for text in others]
    for text, line_pieces in zip(texts, pieces, strict=True):
        yield line_pieces if len(text) <= _MAX_LINE_CHARS else [("", text)]


@cache
def _class_of(token: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if is_token_subtype(token, parent)), "")
