from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import InvalidRequest
from moothall.workflows.plan import Reference, fill_in, find_in, references

RESULT = {
    "output": {"content": "hello", "lines": 3, "items": [{"name": "a"}, "b"], "none": None},
    "status": "success",
    "error": "",
}


def fill(value: Any) -> Any:
    return fill_in(value, lambda reference: find_in(RESULT, reference))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${steps.read.output.content}", "hello"),
        ("${steps.read.output.lines}", 3),
        ("${steps.read.output.items}", [{"name": "a"}, "b"]),
        ("${steps.read.output.none}", None),
        ("${steps.read.output}", RESULT["output"]),
        ("${steps.read.output.items.0.name}", "a"),
        ("${steps.read.status}", "success"),
        (
            "it says ${steps.read.output.content} in ${steps.read.output.lines} lines",
            "it says hello in 3 lines",
        ),
        ("items: ${steps.read.output.items}", 'items: [{"name": "a"}, "b"]'),
        ("$${steps.read.output.content}", "${steps.read.output.content}"),
        ("echo ${HOME} $(pwd) {steps.read}", "echo ${HOME} $(pwd) {steps.read}"),
        (
            ["${steps.read.output.lines}", {"a": "${steps.read.output.content}!"}],
            [3, {"a": "hello!"}],
        ),
        (7, 7),
    ],
)
def test_values_keep_their_type_and_texts_remain_texts(value: Any, expected: Any) -> None:
    assert fill(value) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${steps.read}", "right is"),
        ("${steps.read.outputs.content}", "right is"),
        ("${steps..output}", "right is"),
        ("${steps.read.output.}", "right is"),
        ("${steps.read.status.code}", "right is"),
        ("${steps.read.output.content", "unterminated reference"),
        ("${steps.read.output.${steps.a.output}}", "unterminated reference"),
    ],
)
def test_an_invalid_reference_is_reported(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        list(references({"deep": [text]}))


def test_a_missing_field_is_named_with_the_existing_ones() -> None:
    for path, message in (
        (("contents",), "steps.read.output has content, lines, items, none"),
        (("items", "2"), "is a list of 2"),
        (("items", "x"), "is a list of 2"),
        (("content", "x"), "is neither an object nor a list"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            find_in(RESULT, Reference("read", "output", path))


def test_deeply_nested_arguments_are_refused() -> None:
    value: Any = "x"
    for _ in range(40):
        value = [value]
    with pytest.raises(InvalidRequest, match="deeper"):
        list(references(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text().filter(lambda text: "${" not in text),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_a_value_without_a_reference_is_unchanged(value: Any) -> None:
    assert list(references(value)) == []
    assert fill(value) == value


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), JSON, min_size=1, max_size=4))
def test_a_whole_reference_returns_the_original_value(output: dict[str, Any]) -> None:
    for name, value in output.items():
        text = f"${{steps.s.output.{name}}}"
        assert list(references([text])) == [Reference("s", "output", (name,))]
        assert fill_in(text, lambda reference: find_in({"output": output}, reference)) == value


@pytest.mark.parametrize(
    "bomb", ["${steps.read.output.content}" * 1000, ["${steps.read.output.content}"] * 1000]
)
def test_a_short_text_cannot_expand_to_gigabytes(bomb: Any) -> None:
    lookups = []

    def look_up(reference: Reference) -> Any:
        lookups.append(reference)
        return "x" * 60_000

    with pytest.raises(InvalidRequest, match="characters in all"):
        fill_in({"a": bomb}, look_up)
    assert len(lookups) < 100
