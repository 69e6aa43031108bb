"""What of a changed file could be called, and with what, by its language. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moothall.council.examples import examples_of
from moothall.council.judging.outcomes import NODE, PYTHON
from moothall.council.judging.outcomes_compiled import GO, RUST
from moothall.ranking.inputs.calls import Input, calls_of, changed_functions, inputs
from moothall.ranking.inputs.go import changed_go_functions, go_inputs
from moothall.ranking.inputs.go_methods import changed_go_types, go_steps
from moothall.ranking.inputs.rust import changed_rust_functions, rust_inputs
from moothall.ranking.inputs.script import ENDINGS, changed_script_functions, script_inputs
from moothall.ranking.inputs.script_classes import changed_script_classes, script_steps
from moothall.ranking.inputs.steps import find_dialogues, scripts

LANGUAGES: Mapping[str, tuple[str, ...]] = {PYTHON: (".py",), NODE: ENDINGS, GO: (".go",), RUST: (".rs",)}
"""By what runs the calls, how the files of a language end."""


def language(path: str) -> str:
    """Return what runs the calls of a file, '' where nothing does."""
    return next((code for code, endings in LANGUAGES.items() if path.endswith(endings)), "")


def changed_names(path: str, base: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what differs among the texts of a file and could be called."""
    code = language(path)
    if code == PYTHON:
        return changed_functions(base, texts)
    if code == GO:
        return (*changed_go_functions(base, texts), *changed_go_types(base, texts))
    if code == RUST:
        return changed_rust_functions(base, texts)
    return (*changed_script_functions(path, base, texts), *changed_script_classes(path, base, texts))


def calls(path: str, name: str, base: str, texts: Sequence[str], tests: Sequence[str], *, most: int) -> Mapping[Input, str]:
    """Return at most `most` inputs for one of these, each with what the base's docstring says comes of it, where it says so."""
    code = language(path)
    if code == PYTHON:
        return _of_python(name, base, texts[0], tests, most=most)
    if code == GO:
        is_type = name in changed_go_types(base, texts)
        made = go_steps(name, tests, texts, most) if is_type else go_inputs(name, tests, texts[0], most)
    elif code == RUST:
        made = rust_inputs(name, [*tests, base], texts[0], most)
    else:
        is_class = name in changed_script_classes(path, base, texts)
        made = script_steps(name, tests, texts[0], most) if is_class else script_inputs(name, tests, most)
    return dict.fromkeys(made, "")


def _of_python(name: str, base: str, text: str, tests: Sequence[str], *, most: int) -> Mapping[Input, str]:
    examples = dict(examples_of(base, name))
    said = {one.arguments: want for call, want in examples.items() for one in inputs(name, [call], "", 1)}
    shown = (call for test in tests for call in calls_of(test, name))
    made = scripts(name, [*tests, *find_dialogues(base)], text, most) or inputs(name, [*examples, *shown], text, most)
    return {item: said.get(item.arguments, "") for item in made}
