"""Examples in a task's text are found literally; the current behaviour of code is not an
example.
"""

from __future__ import annotations

import pytest

from moothall.deliberation.prompts.excerpts import examples_text, find_examples, missing_examples

SESSION = """`chunked` loses the rest:

    >>> from more import chunked
    >>> list(chunked([1, 2, 3], 2))
    [[1, 2], [3]]
    >>> chunked([], 0)
    Traceback (most recent call last):
      ...
    ValueError: n must be positive

It gives [[1, 2]] today.
"""


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            "discount(200, 10) should be 180, and `discount(5, 0)` must return `5`.",
            ["discount(200, 10) gives 180", "discount(5, 0) gives 5"],
        ),
        ('`slug("A b")` should give "a-b" (it gives "A-b").', ['slug("A b") gives "a-b"']),
        ("parse('1,2') has to return [1, 2].", ["parse('1,2') gives [1, 2]"]),
        ("`int_of('x')` should raise ValueError.", ["int_of('x') gives ValueError"]),
        ("mod::half(3) → 1; `s.half(4)` == `2`", ["mod::half(3) gives 1", "s.half(4) gives 2"]),
        (
            "```js\nround(2.5) // => 3\nround(-0.5) // => 0\n```",
            ["round(2.5) gives 3", "round(-0.5) gives 0"],
        ),
        ("```go\nif Sum(2, 3) != 5 {}\n```\nSum(2, 3) should be 5", ["Sum(2, 3) gives 5"]),
        ("```rust\nassert_eq!(half(4), 2);\n```", ["assert_eq!(half(4), 2);"]),
        (
            "```js\nexpect(add(1, 2)).toBe(3);\nassert.equal(add(0, 0), 0);\n```",
            ["expect(add(1, 2)).toBe(3);", "assert.equal(add(0, 0), 0);"],
        ),
        ("```python\nassert add(1, 2) == 3\n```", ["add(1, 2) gives 3"]),
        (
            SESSION,
            [
                "list(chunked([1, 2, 3], 2)) gives [[1, 2], [3]]",
                "chunked([], 0) gives ValueError: n must be positive",
            ],
        ),
    ],
)
def test_examples_of_four_languages_are_found(task: str, expected: list[str]) -> None:
    examples = find_examples(task)
    assert [str(example) for example in examples] == expected
    assert all(example.call in task and example.result in task for example in examples)


@pytest.mark.parametrize(
    "task",
    [
        "discount(200, 10) returns 190 at present.",
        "f(3) gives 9 instead of 8",
        "f(3) should not return 9",
        "Call setup() first; it should be fast.",
        "Rename foo() to bar().",
        'It fails with "Indices for islice() must be None or an integer".',
    ],
)
def test_current_or_forbidden_behaviour_is_not_an_example(task: str) -> None:
    assert find_examples(task) == ()


def test_tests_that_lack_an_example_are_reported() -> None:
    task = 'slug("A b") should be "a-b". slug("") should be "".  discount(200, 10) should be 180'
    tests = 'def test_slug():\n    assert slug("A b") == "a-b"\n    assert slug("") == ""\n'
    missing = missing_examples(task, tests)
    assert examples_text(missing) == "- discount(200, 10) gives 180"
    assert (
        missing_examples(
            task, tests + "\n\ndef test_d():\n    assert discount(price=200, percent=10) == 180\n"
        )
        == ()
    )


def test_a_long_text_is_read_fast_and_bounded() -> None:
    assert (
        len(find_examples("\n".join(f"f({number}) should be {number}" for number in range(100))))
        == 20
    )
    find_examples("f(" * 20_000)
    find_examples(">>> f(\n" * 5_000)
    find_examples("`a.b(" + "(" * 10_000)
