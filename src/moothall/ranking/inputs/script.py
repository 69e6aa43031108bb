"""Inputs for the functions of JavaScript and TypeScript files, by their words: calls that tests show, and variants of these. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from moothall.ranking.inputs.calls import Input, differing_names, inputs
from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.normal import code_of

ENDINGS = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_HEAD = re.compile(
    r"(?m)^(?:export\s+(?:default\s+)?)?(?:(?:async\s+)?function\b\s*\*?\s*(?P<plain>[\w$]+)"
    r"|(?:const|let|var)\s+(?P<named>[\w$]+)\s*(?::[^=\n]+)?=\s*(?:async\b\s*)?(?:function\b\s*[\w$]*\s*)?"
    r"|(?:module\.)?exports(?:\.(?P<put>[\w$]+))?\s*=\s*(?:async\b\s*)?(?:function\b\s*(?P<own>[\w$]*)\s*)?)"
    r"\s*(?:<[^(\n]*>)?\((?P<parameters>[^()]*)\)(?P<rest>[^{;\n]*)"
)
_TOKEN = re.compile(
    r"\s+|(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`[^`\\$]*`)|(?P<number>-?(?:\d+\.\d+|\d+)(?![\w.]))|(?P<name>[A-Za-z_$][\w$]*)"
    r"|(?P<mark>[\[\]{}():,])"
)
_PLAIN = {"true": "True", "false": "False", "null": "None"}
_LONG = 500


@dataclass(frozen=True, slots=True)
class ScriptInput(Input):
    """A call as its own language spells it."""

    @property
    def call(self) -> str:
        """As a person would write it."""
        given, _ = ast.literal_eval(self.arguments)
        return f"{self.function}({', '.join(json.dumps(value, ensure_ascii=False) for value in given)})"


def changed_script_functions(path: str, base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the functions that all texts define with the same parameters, and that differ among them."""
    return differing_names(_functions(path, base), [_functions(path, text) for text in texts])


def script_inputs(name: str, sources: Sequence[str], most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a function; `sources` are tests that may call it."""
    calls = [call for source in sources for call in script_calls_of(source, name)]
    return tuple(ScriptInput(item.function, item.arguments) for item in inputs(name, calls, "", most))


def _functions(path: str, text: str) -> Mapping[str, tuple[str, str]]:
    """By name the parameters and the words of what is defined at the top."""
    found, ends = {}, closings(text, "script")
    for match in _HEAD.finditer(text):
        name = match["plain"] or match["named"] or match["put"] or match["own"]
        if not name or not (match["plain"] or match["own"] is not None or "=>" in match["rest"] or "function" in match[0]):
            continue
        opened = text[match.end() : match.end() + 1] == "{"
        end = ends.get(match.end(), 0) if opened else text.find("\n", match.end())
        found[name] = (code_of(path, match["parameters"]), code_of(path, text[match.start() : end if end > 0 else len(text)]))
    return found


def script_calls_of(text: str, function: str) -> Iterator[str]:
    """Yield the calls of a function that a file of tests makes with literals, as Python spells them."""
    for match in re.finditer(rf"(?<![\w$]){re.escape(function)}\(", text):
        if (given := read_arguments(text, match.end())[0]) is not None:
            yield f"{function}({given})"


def read_arguments(text: str, at: int) -> tuple[str | None, int]:
    """Return what stands from `at` on to the bracket that closes, as Python spells it, None where that is more than literals; and where
    the reading ended, behind that bracket.
    """
    made: list[str] = []
    depth = 1
    while depth and at < len(text) and len(made) < _LONG:
        token = _TOKEN.match(text, at)
        if token is None:
            return None, at
        at = token.end()
        if token["mark"]:
            depth += (token["mark"] in "([{") - (token["mark"] in ")]}")
        if depth:
            made.append(_spell(token, text[at:].lstrip()[:1]))
    said = "".join(made)
    with suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        json.dumps(ast.literal_eval(f"[{said}]"), allow_nan=False)
        return said if not depth else None, at
    return None, at


def _spell(token: re.Match[str], follows: str) -> str:
    if token["name"]:
        return json.dumps(token["name"]) if follows == ":" else _PLAIN.get(token["name"], token["name"])
    return json.dumps(token["text"][1:-1]) if (token["text"] or "")[:1] == "`" else token[0]
