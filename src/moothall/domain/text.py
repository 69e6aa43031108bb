"""Foreign text: encodable, safe to show in one line, without secrets, read as YAML, and measured,
cut and fenced before a model sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ahocorasick_rs import AhoCorasick

from moothall.domain.ids import digest

# Foreign text: encodable, and safe to show in one line.


def encodable(text: str) -> str:
    """Return a text with lone surrogates, which cannot be encoded, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_sentence(text: str) -> str:
    """Return a message with a full stop if it has no end mark."""
    return text if text.rstrip().endswith((".", "!", "?", ":")) else f"{text.rstrip()}."


def one_line(text: str, max_chars: int = 300) -> str:
    """Return a text in one line of at most `max_chars` characters, without control, direction and
    zero-width characters, so that no escape sequence reaches a terminal.
    """
    return " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 4 * max_chars]).split()
    )[:max_chars]


def contains_words(text: str, query: str) -> bool:
    """Return whether a text contains every word of a query, in any order and case."""
    lower = text.lower()
    return all(word in lower for word in query.lower().split())


def count_of(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 record`, `2 records`."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


_MAX_YAML_DEPTH = 50
"""The parser takes a second for each thousand brackets that are open at once."""


def parse_foreign_yaml(text: str) -> Any:
    """Return the strings, lists and dicts of a document; None if it is invalid, nested more than
    `_MAX_YAML_DEPTH` times, or has aliases, which can multiply a small text. No other objects are
    created.
    """
    import yaml  # costs start time

    depth = 0
    try:
        for event in yaml.parse(text, yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_YAML_DEPTH or isinstance(event, yaml.AliasEvent):
                return None
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it creates no objects
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


# Removal of secrets from text before it is recorded, logged or shown.
#
# It finds tokens of known shapes, which are precise enough not to match code, and the operator's
# own secrets. Entropy is not used, because it would match commit ids and hashes first.


HOLE = "redacted"
"""The word in every text from which a secret was removed."""
REDACTED = f"[{HOLE}]"
MIN_KNOWN_CHARS = 6
"""Own secrets shorter than this are not replaced, because that would damage ordinary text."""

_EDGE = r"(?<![A-Za-z0-9])"
# Each shape's first literal is searched first: finding all literals at once is much cheaper than
# one pattern.
_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("PRIVATE KEY",),
        (
            r"-----BEGIN (?P<key>[A-Z0-9 ]{0,40}PRIVATE KEY(?: "
            # The scan ends at the next mark: a text of many beginnings takes no longer.
            r"BLOCK)?)-----(?:[^-]|-(?!----(?:BEGIN|END) )){0,20000}+-----END "
            r"(?P=key)-----"
        ),
    ),
    (("AKIA", "ASIA"), _EDGE + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),  # AWS access key
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _EDGE + r"gh[pousr]_[A-Za-z0-9]{36,255}"),  # GitHub
    (("github_pat_",), _EDGE + r"github_pat_[A-Za-z0-9_]{22,255}"),
    (("glpat-",), _EDGE + r"glpat-[A-Za-z0-9_-]{20,64}"),  # GitLab
    (("xox",), _EDGE + r"xox[abeprs]-[A-Za-z0-9-]{10,250}"),  # Slack
    (("sk-",), _EDGE + r"sk-(?:[A-Za-z]{2,12}-){0,4}[A-Za-z0-9_-]{32,250}"),  # OpenAI, Anthropic
    (("_live_", "_test_"), _EDGE + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,250}"),  # Stripe
    (("AIza",), _EDGE + r"AIza[A-Za-z0-9_-]{35}"),  # Google
    (("ya29.",), _EDGE + r"ya29\.[A-Za-z0-9_-]{20,500}"),
    (("hf_",), _EDGE + r"hf_[A-Za-z0-9]{30,64}"),  # Hugging Face
    (("npm_",), _EDGE + r"npm_[A-Za-z0-9]{36}"),
    (("moothall_",), _EDGE + r"moothall_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),  # our callers
    (("pypi-",), _EDGE + r"pypi-[A-Za-z0-9_-]{50,500}"),
    (("SG.",), _EDGE + r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}"),  # SendGrid
    (
        ("eyJ",),
        _EDGE + r"eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,2000}",
    ),  # JWT
)
_PATTERNS = tuple((mark, re.compile(pattern)) for marks, pattern in _SHAPES for mark in marks)
_BEARER = re.compile(
    r"(?i)\b(authorization\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[A-Za-z0-9._~+/=-]{12,4000}"
)
_URL_PASSWORD = re.compile(
    r"\b([a-z][a-z0-9+.-]{1,20}://[^\s:/?#@\[\]]{0,200}:)[^\s/?#@\[\]]{1,500}(?=@)"
)

_URL_MARK = HOLE
"""The mask in a URL, without brackets, so that the URL stays valid."""


@cache
def _longest_first(known_secrets: tuple[str, ...]) -> tuple[str, ...]:
    usable = {
        value for value in known_secrets if len(value) >= MIN_KNOWN_CHARS and value not in REDACTED
    }
    return tuple(sorted(usable, key=len, reverse=True))


def scrub(text: str, known_secrets: Sequence[str] = ()) -> str:
    """Return `text` with every secret replaced by `[redacted]`. The function is idempotent.

    `known_secrets` are the operator's own secrets, which are replaced everywhere.
    """
    if not may_hold_secrets(text, known_secrets):
        return text
    for value in _longest_first(tuple(known_secrets)):
        text = text.replace(value, REDACTED)
    for mark, pattern in _PATTERNS:
        if mark in text:
            text = pattern.sub(REDACTED, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\g<1>{_URL_MARK}", text)
    if "uthorization" in text or "AUTHORIZATION" in text:
        text = _BEARER.sub(rf"\g<1>{REDACTED}", text)
    return text


_KEY = "sk-"


@cache
def _secret_matcher(known_secrets: tuple[str, ...]) -> AhoCorasick:
    """Return a matcher of literals, at least one of which is in every text with a secret. Own
    secrets are matched as they are and as JSON.
    """
    shapes = [
        _KEY,
        *(mark for mark, _ in _PATTERNS if mark != _KEY),
        "://",
        "uthorization",
        "AUTHORIZATION",
    ]
    known_forms = [
        form
        for value in _longest_first(known_secrets)
        for form in (value, json.dumps(value, ensure_ascii=False)[1:-1])
    ]
    return AhoCorasick(list(dict.fromkeys((*shapes, *known_forms))))


def may_hold_secrets(text: str, known_secrets: Sequence[str]) -> bool:
    """Return whether a text, or JSON, may contain a secret for `scrub_all`. This quick check may
    have false positives only.
    """
    try:
        matches = _secret_matcher(tuple(known_secrets)).find_matches_as_indexes(
            text, overlapping=True
        )
    except UnicodeEncodeError:  # half a surrogate pair
        return True
    # "task-1" contains the beginning of an OpenAI key and is in every event; no key follows a
    # letter.
    return any(number or text[max(start - 2, 0) : start] != "ta" for number, start, _ in matches)


def brings_secret(diff: str, clean: Callable[[str], str]) -> bool:
    """Return whether a git diff adds a secret that its removed and unchanged lines did not contain.
    `clean` removes secrets from a text.

    Every added line is checked, also lines that look like headers, and all together, because a key
    may have many lines. Passwords in URLs and `authorization` headers do not count, because in code
    they are mostly examples.
    """
    if clean(diff) == diff:
        return False
    lines = diff.splitlines()
    existing_lines = {line[1:].strip() for line in lines if line[:1] in {"-", " "}}
    added = [
        line[1:]
        for line in lines
        if line.startswith("+") and line[1:].strip() not in existing_lines
    ]
    return holds_secret("\n".join(added), clean)


def holds_secret(text: str, clean: Callable[[str], str]) -> bool:
    """Return whether code contains a secret. Passwords in URLs and `authorization` headers do not
    count, because in code they are mostly examples.
    """
    remaining = _BEARER.sub("", _URL_PASSWORD.sub(rf"\g<1>{_URL_MARK}", text))
    return clean(remaining) != remaining


def scrub_all(value: Any, known_secrets: Sequence[str] = ()) -> Any:
    """Return JSON-shaped data with all texts scrubbed, including the names of fields."""
    if isinstance(value, str):
        return scrub(value, known_secrets)
    if isinstance(value, Mapping):
        return {
            scrub(str(key), known_secrets): scrub_all(item, known_secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub_all(item, known_secrets) for item in value]
    return value


def is_masked(diff: str) -> bool:
    """Return whether an added line of a diff from the event log has a masked secret, so that it is
    not the change that was tested.
    """
    masks = (REDACTED, f":{_URL_MARK}@")
    return any(
        line.startswith("+") and any(mask in line for mask in masks) for line in diff.splitlines()
    )


# Measured, cut and fenced before a model sees it.


CHARS_PER_TOKEN = (
    3.2  # code in a byte-pair vocabulary; low on purpose, so that windows are never overrun
)


def tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    return int(len(text) / CHARS_PER_TOKEN) + 1


# The letters of a word: its first ones and the rest. Then characters that mostly have a token of
# their own: a digit, a sign of another script, punctuation, space.
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d|[^\x00-\x7f]|([^\w\s]|_)\1*|[\t\n\r\f\v]+| {2,}")
_MARGIN = 1.1


def most_tokens(text: str) -> int:
    """Return an upper bound of the tokens of a text for any model. Ids, hashes, times and other
    scripts are denser than the words that `tokens` assumes. It is slower than `tokens`.
    """
    return max(tokens(text), int(sum(map(_piece_tokens, _PIECE.finditer(text))) * _MARGIN) + 1)


def _piece_tokens(match: re.Match[str]) -> int:
    piece = match[0]
    if not piece.isascii():
        return (len(piece.encode("utf-8", "replace")) + 1) // 2
    if piece.isupper():
        return len(piece)
    if piece.isalpha():
        return 1 + (len(piece) - 1) // 7 + max(0, len(piece) - 12) * 2 // 5
    return 1 + (len(piece) - 1) // 4


def clip(text: str, limit: int) -> str:
    """Return at most about `limit` characters: the head, and twice as much of the tail, since
    errors come last.
    """
    if len(text) <= limit:
        return text
    head = limit // 3
    return (
        f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n"
        f"{text[len(text) - (limit - head) :]}"
    )


def fence(label: str, text: str) -> str:
    """Return `text` between two marked lines that do not occur in it, so that it cannot close its
    fence.

    The mark depends only on label and text: the same input gives the same bytes.
    """
    plain_label = " ".join(label.split())[:200]
    full_digest = digest(plain_label, text)
    # The shortest beginning that is in neither: each mark costs tokens of every call.
    mark = next(
        (
            mark
            for size in range(4, len(full_digest))
            if (mark := full_digest[:size]) not in text and mark not in plain_label
        ),
        full_digest,
    )
    return f"--- {plain_label} [{mark}] ---\n{text.rstrip()}\n--- end [{mark}] ---"


def readable_diff(diff: str) -> str:
    """Return a git diff without the lines with object ids, which are useless to a model."""
    return "\n".join(
        line for line in diff.splitlines() if not line.startswith(("index ", "diff --git "))
    )
