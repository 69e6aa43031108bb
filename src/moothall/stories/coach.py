"""The story coach: what a story lacks before a council can work on it. Its rules work on English
text and are deterministic.

A story has 100 points, and each finding costs some; its message says what to write instead. The
points follow INVEST (independent, negotiable, valuable, estimable, small, testable), with the most
for what a council needs: testable criteria.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from moothall.errors import InvalidRequest

CRITERIA, CHARS, TITLE_CHARS = 100, 20_000, 500
"""Limits of a draft: criteria, characters in total, characters of its title."""
TITLE = 80
"""The most characters of a good title."""
_CRITERIA_RANGE, _WORDS_RANGE = (2, 8), (8, 250)
_STEP = re.compile(r"^\W*(given|when|then|and|but)\b", re.IGNORECASE)
_GIVEN, _WHEN, _THEN = (
    re.compile(rf"\b{word}\b", re.IGNORECASE) for word in ("given", "when", "then")
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
ROLE_PHRASE = re.compile(r"\bas (?:an?|the)\s+\w+", re.IGNORECASE)
WISH_PHRASE = re.compile(r"\bI (?:want|need|can|would like)\b|\bI'd like\b", re.IGNORECASE)
REASON_PHRASE = re.compile(r"\bso that\b|\bin order to\b|\bbecause\b", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"<(?:who|what|why|a state|something happens|what can be "
    r"seen)>|\bTB[DCA]\b|\bTODO\b|\?\?+|\bto be (?:decided|defined|determined)\b|\bsomehow\b",
    re.IGNORECASE,
)
_VAGUE = re.compile(
    r"\b(fast|quick(?:ly)?|slow|easy|easily|simple|simply|nice(?:ly)?|good|better|user[- "
    r"]friendly|intuitive(?:ly)?|robust(?:ly)?|scalable|efficient(?:ly)?"
    r"|appropriate(?:ly)?|proper(?:ly)?|correct(?:ly)?|as (?:needed|expected|usual)|works? "
    r"(?:well|fine)|etc|and so on|various|some kind of|reasonable)\b",
    re.IGNORECASE,
)
_DEPENDENCY_PHRASE = re.compile(
    r"\b(?:depends on|blocked by|(?:once|after|when) (?:the )?(?:other |previous |next "
    r")?(?:story|stories|ticket|epic)|needs (?:the )?(?:story|ticket|epic))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class StoryDraft:
    """A story as its author wrote it."""

    title: str = ""
    description: str = ""
    ac: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """A finding of the coach: `weight` points are lost by it."""

    code: str
    message: str
    weight: int


@dataclass(frozen=True, slots=True)
class Score:
    """A score of 0 to 100, and the findings that cost points, the heaviest first."""

    total: int
    findings: tuple[Shortcoming, ...]


def check(draft: StoryDraft) -> StoryDraft:
    """Return the draft normalized: white space collapsed, and steps on lines of their own joined to
    a criterion. Raises `InvalidRequest`.
    """
    chars = len(draft.title) + len(draft.description) + sum(map(len, draft.ac))
    if len(draft.title) > TITLE_CHARS or chars > CHARS:
        raise InvalidRequest(
            f"the story has {chars} characters, its title {len(draft.title)}; allowed are {CHARS} "
            f"and {TITLE_CHARS}"
        )
    if len(draft.ac) > CRITERIA:
        raise InvalidRequest(f"the story has {len(draft.ac)} criteria; allowed are {CRITERIA}")
    return StoryDraft(
        " ".join(draft.title.split()), draft.description.strip(), tuple(join_steps(draft.ac))
    )


def join_steps(lines: Iterable[str]) -> Iterator[str]:
    """Yield criteria. A line that begins with When, Then, And or But continues the criterion before
    it.
    """
    criterion = ""
    for line in (part for item in lines for part in item.splitlines()):
        text = " ".join(_BULLET.sub("", line).split())
        step = _STEP.match(text)
        if (
            step
            and step[1].lower() != "given"
            and criterion
            and _STEP.match(criterion)
            and not _begins_criterion(step[1], criterion)
        ):
            criterion = f"{criterion.rstrip(',.;')}, {text}"
            continue
        if criterion:
            yield criterion
        criterion = text
    if criterion:
        yield criterion


def _begins_criterion(step_word: str, earlier_text: str) -> bool:
    """Return True if a step begins a new criterion: a When after a Then."""
    return step_word.lower() == "when" and _THEN.search(earlier_text) is not None


def score(draft: StoryDraft) -> Score:
    """Return the score of a draft. Raises `InvalidRequest` if it is too long."""
    draft = check(draft)
    findings = sorted(_find_shortcomings(draft), key=lambda item: -item.weight)
    return Score(100 - sum(item.weight for item in findings), tuple(findings))


def _find_shortcomings(draft: StoryDraft) -> Iterator[Shortcoming]:
    yield from _check_title(draft.title)
    yield from _check_description(draft.description)
    yield from _check_criteria([line for line in draft.ac if not _PLACEHOLDER.search(line)])
    text = f"{draft.title}\n{draft.description}"
    if (placeholder := _PLACEHOLDER.search(text)) is not None:
        yield Shortcoming(
            "ESTIMABLE",
            f"{_quote_text(placeholder[0])} is still open: decide it, or make finding it out a "
            "story of its own",
            10,
        )
    if (dependency := _DEPENDENCY_PHRASE.search("\n".join((text, *draft.ac)))) is not None:
        yield Shortcoming(
            "INDEPENDENT",
            f"{_quote_text(dependency[0])}: write the story so that it can be done by itself, or "
            "join the two",
            5,
        )
    words = len(draft.description.split())
    if len(draft.ac) > _CRITERIA_RANGE[1] or words > _WORDS_RANGE[1]:
        size = f"{len(draft.ac)} criteria and {words} words of description"
        yield Shortcoming(
            "SMALL",
            f"{size}: split it into stories of at most {_CRITERIA_RANGE[1]} criteria and "
            f"{_WORDS_RANGE[1]} words each",
            10,
        )


def _check_title(title: str) -> Iterator[Shortcoming]:
    if not title:
        yield Shortcoming(
            "TITLE",
            "write a title: what is possible afterwards, such as 'Export invoices as CSV'",
            10,
        )
    elif len(title.split()) < 2:  # noqa: PLR2004 - a verb and what it acts on
        yield Shortcoming(
            "TITLE",
            f"{_quote_text(title)} is one word: say what is possible afterwards, such as 'Export "
            "invoices as CSV'",
            5,
        )
    elif len(title) > TITLE:
        yield Shortcoming(
            "TITLE",
            f"the title has {len(title)} characters: keep at most {TITLE}, the rest into the "
            "description",
            5,
        )


def _check_description(text: str) -> Iterator[Shortcoming]:
    words = len(text.split())
    if not words:
        yield Shortcoming(
            "DESCRIPTION", "describe it: as a <who>, I want <what>, so that <why>", 10
        )
        yield Shortcoming(
            "VALUABLE", "say who needs it and why: as a <who>, I want <what>, so that <why>", 15
        )
        return
    if words < _WORDS_RANGE[0]:
        yield Shortcoming(
            "DESCRIPTION",
            f"{words} words say little: describe what happens today and what should happen instead",
            5,
        )
    missing = [
        advice
        for pattern, advice in (
            (ROLE_PHRASE, "who needs it (as a …)"),
            (WISH_PHRASE, "what they want (I want …)"),
            (REASON_PHRASE, "why (so that …)"),
        )
        if not pattern.search(text)
    ]
    if missing:
        yield Shortcoming("VALUABLE", f"add {', '.join(missing)}", 5 * len(missing))


def _check_criteria(ac: Sequence[str]) -> Iterator[Shortcoming]:
    if not ac:
        yield Shortcoming(
            "CRITERIA",
            "add acceptance criteria: given <a state>, when <something happens>, then <what can be "
            "seen>",
            20,
        )
        yield Shortcoming("GHERKIN", "write each criterion as given …, when …, then …", 15)
        yield Shortcoming("TESTABLE", "without criteria nobody can tell when it is done", 15)
        return
    if len(ac) < _CRITERIA_RANGE[0]:
        yield Shortcoming(
            "CRITERIA",
            "one criterion alone: add one for what goes wrong (an empty input, a refused one)",
            8,
        )
    plain = [line for line in ac if not is_gherkin(line)]
    if plain:
        weight = max(1, round(15 * len(plain) / len(ac)))
        yield Shortcoming(
            "GHERKIN",
            f"write {_quote_text(plain[0])} as given …, when …, then …{_count_more(plain)}",
            weight,
        )
    vague = [(line, match[0]) for line in ac if (match := _VAGUE.search(line)) is not None]
    if vague:
        (line, word), weight = vague[0], max(1, round(15 * len(vague) / len(ac)))
        yield Shortcoming(
            "TESTABLE",
            f"{_quote_text(word)} cannot be tested in {_quote_text(line)}: say what is seen, a "
            f"value or a number{_count_more(vague)}",
            weight,
        )


def is_gherkin(criterion: str) -> bool:
    """Return True if a criterion has given, when and then, in this order, each followed by text."""
    position = 0
    for pattern in (_GIVEN, _WHEN, _THEN):
        if (match := pattern.search(criterion, position)) is None:
            return False
        position = match.end()
    return bool(criterion[position:].strip(" .:,"))


def _count_more(items: Sequence[object]) -> str:
    return f" ({len(items) - 1} more like it)" if len(items) > 1 else ""


def _quote_text(text: str) -> str:
    return f"'{text[:60]}…'" if len(text) > 60 else f"'{text}'"  # noqa: PLR2004 - what fits in a line
