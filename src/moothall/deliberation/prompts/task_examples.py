"""Examples in a task's text: calls with their expected results, both literally in the text. Pure.

A call with its present result is no example, so prose needs a word such as "should", or an arrow or
comparison.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_READ, _MOST, _LONGEST = 50_000, 20, 300
_ARGUMENTS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
_CALL = rf"(?:new )?[A-Za-z_][\w.]*(?:(?:::|!)\w*)*{_ARGUMENTS}(?:\.\w+(?:{_ARGUMENTS})?)*"
_VALUE = (
    r"`(?P<code>[^`\n]+)`|(?P<plain>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[\[{(][^\n`]*?[\]})](?=[\s.,;]|$)"
    r"|-?\d[\w.]*\w|-?\d|(?:None|True|False|nil|null|undefined|true|false|NaN)\b|(?:Ok|Err|Some)\([^\n()]*\)|[A-Z]\w*(?:Error|Exception)\b)"
)
_ASKS = (
    r"(?:should|must|shall|has to|have to|ought to|needs? to|is (?:expected|supposed) "
    r"to)\s+(?:now |then |also |always )*"
    r"(?:be|return|give|yield|equal|evaluate to|result in|raise|throw|print|output|become)"
)
_PROSE = re.compile(
    rf"`?(?P<call>{_CALL})`?\s+{_ASKS}\s+(?:an? |the "
    rf")?(?:(?:string|value|list|number|error)\s+)?(?:{_VALUE})"
)
_ARROW = re.compile(
    rf"`?(?P<call>{_CALL})`?\s*(?:==|===|=>|->|→|↦|(?:#|//)\s*(?:=>|->|→))\s*(?:{_VALUE})"
)
_ASSERTION = re.compile(
    r"(?m)^[ \t]*(?:>>> )?(?P<line>(?:assert(?:_eq|_ne)?!\(.*\);?"
    r"|(?:self\.)?assert\w*\(.+\)|assert\.\w+\(.+\);?|expect\(.+\)\.(?:not\.)?to\w*\(.*\);?))[ "
    r"\t]*$"
)
_SESSION = re.compile(
    r"(?m)^(?P<inset>[ \t]*)>>> (?P<call>.+)\n(?P<more>(?:(?P=inset)\.\.\. "
    r"?.*\n)*)(?P<said>(?:(?!(?P=inset)>>>|[ \t]*```|[ \t]*$).*(?:\n|\Z))*)"
)
_LITERAL = re.compile(
    r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'|(?<![\w.])(\d[\w.]*\w|\d)(?![\w])"
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class TaskExample:
    """A call as the task writes it, and its expected result. Of an assertion, `call` is the whole
    line and `result` is ''.
    """

    call: str
    result: str = ""

    def __str__(self) -> str:
        return f"{self.call} gives {self.result}" if self.result else self.call

    def is_in(self, tests: str) -> bool:
        """Return whether tests contain the called name and each literal of the example."""
        names = _NAME.findall(self.call.partition("(")[0]) if self.result else []
        literals = [
            next(filter(None, match.groups()), "")
            for match in _LITERAL.finditer(f"{self.call} {self.result}")
        ]
        return all(name in tests for name in names[-1:]) and all(
            literal in tests for literal in literals
        )


def find_examples(task: str) -> tuple[TaskExample, ...]:
    """Return the distinct examples of a task, in the order of its text."""
    found = sorted(_all(task[:_READ]), key=lambda item: item[0])
    examples = dict.fromkeys(
        example for _, example in found if len(example.call) + len(example.result) <= _LONGEST
    )
    return tuple(examples)[:_MOST]


def missing_examples(task: str, tests: str) -> tuple[TaskExample, ...]:
    """Return the examples of a task that are not in the tests."""
    return tuple(example for example in find_examples(task) if not example.is_in(tests))


def examples_text(examples: Sequence[TaskExample]) -> str:
    """Return examples as a list, or ''."""
    return "\n".join(f"- {example}" for example in examples)


def _all(task: str) -> Iterator[tuple[int, TaskExample]]:
    for pattern in (_PROSE, _ARROW):
        for match in pattern.finditer(task):
            if not _is_quoted(task, match.start()):
                yield match.start(), TaskExample(match["call"], match["code"] or match["plain"])
    for match in _ASSERTION.finditer(task):
        yield match.start(), TaskExample(match["line"])
    for match in _SESSION.finditer(task):
        output = match["said"].strip()
        if (
            output
            and "(" in match["call"]
            and not match["more"]
            and not match["call"].startswith(("assert ", "import ", "from "))
        ):
            yield match.start(), TaskExample(match["call"].strip(), output.splitlines()[-1].strip())


def _is_quoted(task: str, position: int) -> bool:
    """Return whether a position is inside double quotes, as in an error message."""
    return task[task.rfind("\n\n", 0, position) + 1 : position].count('"') % 2 == 1
