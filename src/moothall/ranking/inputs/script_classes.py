"""Inputs for the classes of JavaScript and TypeScript files, by their words: what tests do with their instances. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moothall.ranking.inputs.calls import LONG, Input, differing_names
from moothall.ranking.inputs.instances import find_instances, with_variants
from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.normal import code_of

_HEAD = re.compile(
    r"(?m)^(?:export\s+(?:default\s+)?|(?:module\.)?exports(?:\.\w+)?\s*=\s*|(?:const|let|var)\s+[\w$]+\s*=\s*)?"
    r"class\s+(?P<name>[\w$]+)[^{}\n]*\{"
)
_MAKER = re.compile(r"(?m)^[ \t]*constructor\s*\(([^()]*)\)")
_READ = re.compile(r"(?m)^[ \t]*get\s+([\w$]+)\s*\(\s*\)")


@dataclass(frozen=True, slots=True)
class ScriptSteps(Input):
    """What is done with an instance, as its own language spells it."""

    @property
    def call(self) -> str:
        """As a person would write it."""
        made = f"new {self.function}({_spell(ast.literal_eval(self.arguments)[0])})"
        steps = [name if given is None else f"{name}({_spell(given)})" for name, given, _ in ast.literal_eval(self.then)]
        return f"{made}.{steps[0]}" if len(steps) == 1 else "; ".join([f"it = {made}", *(f"it.{step}" for step in steps)])


def changed_script_classes(path: str, base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the classes that all texts define with the same parameters, and that differ among them."""
    return differing_names(_classes(path, base), [_classes(path, text) for text in texts])


def script_steps(name: str, sources: Iterable[str], text: str, most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a class that `text` defines: what the sources do with its instances, then variants."""
    read = frozenset(_READ.findall(text))
    maker = re.compile(rf"(?:(?P<it>[\w$]+)\s*=\s*)?\b(?P<how>new)\s+(?:[\w$]+\.)?{re.escape(name)}\(")
    shown = (made for source in sources for made in find_instances(source, maker, "", read))
    found = dict.fromkeys(ScriptSteps(name, repr(made.script[0]), repr(made.script[1])) for made in with_variants(shown))
    return tuple(item for item in found if len(item.arguments) + len(item.then) <= LONG)[:most]


def _classes(path: str, text: str) -> Mapping[str, tuple[str, str]]:
    """By name what one is made with, and the words of what is defined at the top."""
    return dict(_definitions(path, text))


def _definitions(path: str, text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    ends = closings(text, "script")
    for match in _HEAD.finditer(text):
        if end := ends.get(match.end() - 1, 0):
            said = text[match.start() : end]
            maker = _MAKER.search(said)
            yield match["name"], (code_of(path, maker[1] if maker else ""), code_of(path, said))


def _spell(given: Sequence[Any]) -> str:
    return ", ".join(json.dumps(value, ensure_ascii=False) for value in given)
