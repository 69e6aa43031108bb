"""Inputs for the functions of Go files, by their words: calls that tests show, variants of these, and by type where none is shown. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from moothall.ranking.inputs.calls import Input, differing_names, inputs
from moothall.ranking.inputs.script import script_calls_of
from moothall.ranking.syntax.brackets import closings
from moothall.ranking.syntax.normal import code_of

_HEAD = re.compile(r"(?m)^func (?P<name>\w+)\((?P<parameters>[^()]*)\)(?P<results>[^{}\n]*)\{$")
_LIST = re.compile(r"\[\]\w+\{([^{}]*)\}")
_WHOLE = re.compile(r"(?P<unsigned>u?)int(?P<bits>8|16|32|64)?|byte|rune")
_BYTES = {"byte": ("u", 8), "rune": ("", 32)}


@dataclass(frozen=True, slots=True)
class GoInput(Input):
    """A call whose arguments are spelt as Go does; by name stand their types and whether something is returned."""

    @property
    def call(self) -> str:
        """As a person would write it."""
        return f"{self.function}({', '.join(ast.literal_eval(self.arguments)[0])})"


def changed_go_functions(base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the functions that all texts define with the same parameters, of plain types, and that differ among them."""
    return differing_names(_functions("", base), [_functions("", text) for text in texts])


def go_inputs(name: str, sources: Sequence[str], text: str, most: int) -> tuple[Input, ...]:
    """Return at most `most` inputs for a function that `text` defines; `sources` are tests that may call it."""
    (parameters, results), _ = _functions(name, text)[name]
    types = [kind for _, kind in parameters]
    shown = [call for source in sources for call in script_calls_of(plain_lists(source), name)]
    signature = f"def {name}({', '.join(f'p{at}: {plain_kind(kind)}' for at, kind in enumerate(types))}): ..."
    made: dict[Input, None] = {}
    for item in inputs(name, shown, signature, 4 * most):
        given, named = ast.literal_eval(item.arguments)
        spelt = [spell_go(value, kind) for value, kind in zip(given, types, strict=False)]
        if len(given) == len(types) and not named and all(spelt):
            made[GoInput(name, repr((tuple(spelt), {"returns": bool(results), "types": types})))] = None
    return tuple(made)[:most]


def _functions(wanted: str, text: str) -> Mapping[str, tuple[tuple[tuple[tuple[str, str], ...], str], str]]:
    """By name the parameters with their types, the results, and the words of what is defined at the top and takes plain values."""
    found, ends = {}, closings(text, "script")
    for match in _HEAD.finditer(text):
        parameters = tuple(go_parameters(match["parameters"]))
        end = ends.get(match.end() - 1, 0)
        if end and parameters and all(plain_kind(kind) for _, kind in parameters) and wanted in {"", match["name"]}:
            found[match["name"]] = ((parameters, match["results"].strip()), code_of("_.go", text[match.start() : end]))
    return found


def go_parameters(said: str) -> Iterator[tuple[str, str]]:
    """Yield names and types: in `a, b int` both have the last."""
    parts = [part.split(None, 1) for part in said.split(",") if part.strip()]
    kind = ""
    found = []
    for part in reversed(parts):
        kind = part[1].strip() if len(part) > 1 else kind
        found.append((part[0], kind))
    yield from reversed(found)


def plain_kind(kind: str) -> str:
    """What Python says for a type of Go; nothing where its values cannot be written plainly."""
    if kind.startswith("[]") and (inner := plain_kind(kind[2:])) and "[" not in inner:
        return f"list[{inner}]"
    plain = {"string": "str", "bool": "bool", "float64": "float", "float32": "float"}
    return plain.get(kind, "int" if _WHOLE.fullmatch(kind) else "")


def spell_go(value: Any, kind: str) -> str:
    """Return a value as Go spells it; nothing where it does not fit the type."""
    if kind.startswith("[]"):
        inner = [spell_go(item, kind[2:]) for item in value] if isinstance(value, list) else [""]
        return f"{kind}{{{', '.join(inner)}}}" if all(inner) else ""
    if kind == "bool" or isinstance(value, bool):
        return ("true" if value else "false") if kind == "bool" and isinstance(value, bool) else ""
    if kind == "string":
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and value.isprintable() else ""
    if kind.startswith("float"):
        return repr(value) if isinstance(value, int | float) else ""
    return str(value) if isinstance(value, int) and _fits(value, kind) else ""


def _fits(value: int, kind: str) -> bool:
    found = _WHOLE.fullmatch(kind)
    unsigned, bits = _BYTES.get(kind) or ((found["unsigned"], int(found["bits"] or 32)) if found else ("", 8))
    return 0 <= value < 1 << bits if unsigned else -(1 << bits - 1) <= value < 1 << bits - 1


def plain_lists(text: str) -> str:
    """Tests whose lists of plain values are spelt as those of other languages are."""
    with suppress(RecursionError):
        return _LIST.sub(r"[\1]", text)
    return text
