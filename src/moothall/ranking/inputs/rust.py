"""Inputs for the functions of Rust files, by their words: calls that tests show, variants of these, and by type where none is shown. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moothall.ranking.inputs.calls import Input, differing_names, inputs
from moothall.ranking.inputs.script import script_calls_of
from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.normal import code_of

_HEAD = re.compile(
    r"(?m)^(?:pub(?:\([^)\n]*\))? +)?(?:const +)?fn +(?P<name>\w+)(?:<'\w+(?:, *'\w+)*>)?\((?P<given>[^()]{0,2000})\)[^{};]{0,500}\{"
)
_LIFE = re.compile(r"'\w+ +")
_WHOLE = re.compile(r"(?P<sign>[iu])(?P<bits>8|16|32|64|128|size)")
_KIND = re.compile(r"(?P<by>&(?:mut +)?)?(?:(?P<list>\[|Vec<)(?P<each>&?\w+)[\]>]|(?P<one>\w+))")
_PLAIN = (
    (re.compile(r"&(?:mut\s+)?(?=[\[\"]|vec!\[|String::from)|\bvec!(?=\[)|\.(?:to_string|to_owned|into|to_vec)\(\)"), ""),
    (re.compile(r"\bString::from\((\"(?:\\.|[^\"\\\n])*\")\)"), r"\1"),
    (re.compile(r"(?<=\d)_(?=\d)|(?<=\d)_?(?:[iu](?:8|16|32|64|128|size)|f(?:32|64))\b"), ""),
)
"""How plain values are spelt in Rust alone, and what is left of that."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a function takes: how it is handed over (`&`, `&mut ` or nothing), the type that it is declared with, and that of Python."""

    by: str
    declared: str
    annotation: str


@dataclass(frozen=True, slots=True)
class RustInput(Input):
    """A call: `arguments` are for each of its parameters how it is handed over, the type and the value as Rust spells it."""

    @property
    def call(self) -> str:
        """As a person would write it."""
        return f"{self.function}({', '.join(by + value for by, _, value in ast.literal_eval(self.arguments))})".replace(
            "std::", ""
        )


def changed_rust_functions(base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the functions that all texts define with the same parameters, of plain types, and that differ among them."""
    return differing_names(_functions(base), [_functions(text) for text in texts])


def rust_inputs(name: str, sources: Sequence[str], text: str, most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a function that `text` defines; `sources` are tests that may call it."""
    parameters, _ = _functions(text)[name]
    shown = [call for source in sources for call in script_calls_of(_plain(source), name)]
    signature = f"def {name}({', '.join(f'p{at}: {each.annotation}' for at, each in enumerate(parameters))}): ..."
    made: dict[Input, None] = {}
    for item in inputs(name, shown, signature, 4 * most):
        given, named = ast.literal_eval(item.arguments)
        spelt = [(each.by, each.declared, _spell(value, each.declared)) for value, each in zip(given, parameters, strict=False)]
        if len(given) == len(parameters) and not named and all(value for *_, value in spelt):
            made[RustInput(name, repr(tuple(spelt)))] = None
    return tuple(made)[:most]


def _functions(text: str) -> Mapping[str, tuple[tuple[Parameter, ...], str]]:
    """By name the parameters and the words of what is defined at the top and takes plain values."""
    found, ends = {}, closings(text, "rust")
    for match in _HEAD.finditer(text):
        parameters = tuple(_parameters(match["given"]))
        end = ends.get(match.end() - 1, 0)
        if end and parameters and all(each.annotation for each in parameters):
            found[match["name"]] = (parameters, code_of("_.rs", text[match.start() : end]))
    return found


def _parameters(said: str) -> Iterator[Parameter]:
    for part in said.split(","):
        if part.strip():
            yield _parameter(_LIFE.sub("", part.partition(":")[2]).strip())


def _parameter(kind: str) -> Parameter:
    """Return what is known of a type; without an annotation where its values cannot be written plainly."""
    match = _KIND.fullmatch(kind)
    if match is None:
        return Parameter("", kind, "")
    by, one = " ".join((match["by"] or "").split()), match["each"] or match["one"]
    if one == "str" and by == "&" and not match["list"]:
        by, one = "", "&str"
    annotation = _annotation(one)
    if match["list"]:
        known = annotation and (by or match["list"] == "Vec<")
        return Parameter(_by(by), f"std::vec::Vec<{_full_type(one)}>", f"list[{annotation}]" if known else "")
    return Parameter(_by(by), _full_type(one), annotation)


def _by(said: str) -> str:
    return "&mut " if said == "&mut" else said


def _full_type(kind: str) -> str:
    return "std::string::String" if kind == "String" else kind


def _annotation(kind: str) -> str:
    plain = {"&str": "str", "String": "str", "char": "str", "bool": "bool", "f32": "float", "f64": "float"}
    return plain.get(kind, "int" if _WHOLE.fullmatch(kind) else "")


def _spell(value: Any, kind: str) -> str:  # noqa: PLR0911 - one for each kind
    """Return a value as Rust spells it; nothing where it does not fit the type."""
    if kind.startswith("std::vec"):
        inner = [_spell(item, kind[14:-1]) for item in value] if isinstance(value, list) else [""]
        return f"std::vec![{', '.join(inner)}]" if all(inner) else ""
    if isinstance(value, bool) or kind == "bool":
        return str(value).lower() if kind == "bool" and isinstance(value, bool) else ""
    if isinstance(value, str):
        if not value.isprintable():
            return ""
        if kind == "char":
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" if len(value) == 1 else ""
        said = json.dumps(value, ensure_ascii=False)
        return {"&str": said, "std::string::String": f"std::string::String::from({said})"}.get(kind, "")
    if kind in {"f32", "f64"}:
        return repr(float(value)) if isinstance(value, int | float) else ""
    return str(value) if isinstance(value, int) and _fits(value, kind) else ""


def _fits(value: int, kind: str) -> bool:
    found = _WHOLE.fullmatch(kind)
    if found is None:
        return False
    bits = int(found["bits"].replace("size", "64"))
    return 0 <= value < 1 << bits if found["sign"] == "u" else -(1 << bits - 1) <= value < 1 << bits - 1


def _plain(text: str) -> str:
    """Tests whose plain values are spelt as those of other languages are."""
    for pattern, instead in _PLAIN:
        text = pattern.sub(instead, text)
    return text
