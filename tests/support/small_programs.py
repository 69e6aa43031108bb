"""Small programs with one bug each, and pools of generated candidates of which few are right.

Each has the right text, the change that makes it wrong, and arguments; the results of the right
text are the cases. Every other case is visible, the others are hidden. Wrong candidates are the
right text with one operator or constant changed.
"""

from __future__ import annotations

import ast
import copy
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

_STEPS = 20_000  # maximum number of lines that a call may execute


@dataclass(frozen=True, slots=True)
class Program:
    """A function `name`, the bug of its text, and arguments to call it with."""

    name: str
    requirement: str
    text: str
    bug: tuple[str, str]
    arguments: tuple[tuple[Any, ...], ...]

    @property
    def wrong_text(self) -> str:
        """The text of the base."""
        assert self.bug[0] in self.text, self.name
        return self.text.replace(*self.bug, 1)

    @property
    def cases(self) -> tuple[tuple[tuple[Any, ...], Any], ...]:
        """The arguments with their expected results."""
        return tuple(zip(self.arguments, results(self, self.text), strict=True))

    @property
    def task(self) -> str:
        """The task's text, with the first failing visible case as an example."""
        current_results = results(self, self.wrong_text)
        failing = [
            (case, actual)
            for case, actual in list(zip(self.cases, current_results, strict=True))[::2]
            if case[1] != actual
        ]
        (arguments, expected), actual = failing[0]
        call = f"{self.name}({', '.join(map(repr, arguments))})"
        return (
            f"{self.name}() in programs/{self.name}.py is wrong. It should {self.requirement}. "
            f"{call} should be {expected!r}; now it is {actual!r}."
        )

    def tests(self, start: int) -> str:
        """Return every other case, from the one at `start`, as a test file."""
        lines = [f"from programs.{self.name} import {self.name}", ""]
        for number, (arguments, expected) in enumerate(self.cases[start::2], 1):
            call = f"{self.name}({', '.join(map(repr, arguments))})"
            lines += [
                "",
                f"def test_{self.name}_{number}():",
                f"    assert {call} == {expected!r}",
                "",
            ]
        return "\n".join(lines)


def results(program: Program, text: str) -> list[Any]:
    """Call the function of a text with all arguments. An error yields its name, and so does a call
    that does not end.
    """
    names: dict[str, Any] = {}
    exec(compile(text, program.name, "exec"), names)  # noqa: S102 - our own programs
    return [_call(names[program.name], copy.deepcopy(arguments)) for arguments in program.arguments]


def _call(function: Any, arguments: Sequence[Any]) -> Any:
    steps_left = _STEPS

    def count(_frame: FrameType, _event: str, _value: object) -> Any:
        nonlocal steps_left
        steps_left -= 1
        if steps_left < 0:
            raise TimeoutError
        return count

    trace_before = sys.gettrace()
    sys.settrace(count)
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a wrong program raises
        return type(error).__name__
    finally:
        sys.settrace(trace_before)


@dataclass(frozen=True, slots=True)
class Generated:
    """A candidate: the text of the function, and whether all cases hold."""

    text: str
    right: bool


def pool(
    program: Program, seed: int, size: int = 5, probability: float = 0.34
) -> tuple[Generated, ...]:
    """Return this many different candidates, each right with the given probability."""
    rng = random.Random(f"{program.name} {seed}")  # noqa: S311 - no secret
    expected = [result for _, result in program.cases]
    outcomes: dict[str, list[Any]] = {}
    for text in dict.fromkeys(_mutants(program.text)):
        actual = results(program, text)
        if (
            actual != expected
            and "TimeoutError" not in actual
            and text != ast.unparse(ast.parse(program.wrong_text))
        ):
            outcomes[text] = actual
    wrong_texts = sorted(outcomes)
    plausible = [text for text in wrong_texts if outcomes[text][::2] == expected[::2]]
    rng.shuffle(wrong_texts)
    rng.shuffle(plausible)
    chosen: list[Generated] = []
    used: set[str] = set()
    while len(chosen) < size:
        if rng.random() < probability:
            chosen.append(Generated(_rename_locals(program.text, len(chosen)), right=True))
            continue
        candidates = plausible if plausible and rng.random() < 0.5 else wrong_texts
        text = next(
            (text for text in [*candidates, *wrong_texts] if text not in used), wrong_texts[0]
        )
        used.add(text)
        chosen.append(Generated(text, right=False))
    return tuple(chosen)


def _rename_locals(text: str, number: int) -> str:
    """Return the same function with other names of its local variables."""
    tree = ast.parse(text)
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    stored -= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in stored:
            node.id = f"{node.id}_{number}"
    return ast.unparse(tree)


_COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


def _mutants(text: str) -> Iterator[str]:
    """Yield the text with one operator or number changed."""
    count = sum(1 for _ in ast.walk(ast.parse(text)))
    for place in range(count):
        for index in range(len(_COMPARED)):
            tree = ast.parse(text)
            node = list(ast.walk(tree))[place]
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
                node.ops[0] = _COMPARED[index]()
            elif (
                isinstance(node, ast.BinOp | ast.AugAssign)
                and type(node.op) in _COMPUTED
                and index == 0
            ):
                node.op = _COMPUTED[type(node.op)]()
            elif isinstance(node, ast.BoolOp) and index == 0:
                node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            elif isinstance(node, ast.If) and index == 0:
                node.test = ast.UnaryOp(ast.Not(), node.test)
            elif isinstance(node, ast.Constant) and type(node.value) is int and index < 2:
                node.value += 1 if index else -1
            else:
                continue
            yield ast.unparse(ast.fix_missing_locations(tree))


def _program(
    name: str, requirement: str, text: str, bug: tuple[str, str], *arguments: tuple[Any, ...]
) -> Program:
    return Program(name, requirement, text.strip() + "\n", bug, arguments)


PROGRAMS = (
    _program(
        "count_bits",
        "return how many bits of a number are set",
        """
def count_bits(number):
    count = 0
    while number > 0:
        count += number % 2
        number = number // 2
    return count
""",
        ("number > 0", "number > 1"),
        *((value,) for value in (0, 5, 1, 8, 2, 255, 3, 1023, 7, 16)),
    ),
    _program(
        "digit_root",
        "add the digits of a number until one digit is left",
        """
def digit_root(number):
    while number > 9:
        total = 0
        while number > 0:
            total += number % 10
            number = number // 10
        number = total
    return number
""",
        ("number > 9", "number > 10"),
        *((value,) for value in (10, 7, 0, 38, 100, 99, 199, 12345, 9, 19)),
    ),
    _program(
        "largest_gap",
        "return the largest difference of two neighbours in sorted order",
        """
def largest_gap(numbers):
    ordered = sorted(numbers)
    largest = 0
    for place in range(1, len(ordered)):
        gap = ordered[place] - ordered[place - 1]
        if gap > largest:
            largest = gap
    return largest
""",
        ("range(1,", "range(2,"),
        ([9, 1],),
        ([3, 6, 9, 1],),
        ([1, 8, 9],),
        ([10],),
        ([],),
        ([5, 5],),
        ([1, 3, 100],),
        ([0, 50, 60],),
        ([-5, 5],),
        ([2, 4, 8],),
    ),
    _program(
        "is_balanced",
        "say whether each bracket of a text is closed in order",
        """
def is_balanced(text):
    open_ones = []
    pairs = {")": "(", "]": "["}
    for char in text:
        if char in "([":
            open_ones.append(char)
        elif char in pairs:
            if len(open_ones) == 0 or open_ones.pop() != pairs[char]:
                return False
    return len(open_ones) == 0
""",
        ("return len(open_ones) == 0", "return True"),
        *(
            (value,)
            for value in (
                "(",
                "()",
                "[(",
                "([])",
                "([)]",
                ")",
                "",
                "]",
                "(()",
                "a(b)c",
                "((",
                "())",
            )
        ),
    ),
    _program(
        "rotate",
        "return a list whose items are moved to the right by some places",
        """
def rotate(items, places):
    if len(items) == 0:
        return []
    places = places % len(items)
    return items[len(items) - places:] + items[:len(items) - places]
""",
        ("places % len(items)", "places % (len(items) + 1)"),
        ([1, 2, 3], 4),
        ([1, 2, 3], 1),
        ([], 3),
        ([1, 2], 2),
        ([1], 5),
        ([1, 2, 3], 0),
        ([4, 5, 6], 3),
        ([1, 2, 3, 4], 7),
        ([1, 2], -1),
        ([7, 8, 9], 5),
    ),
    _program(
        "run_lengths",
        "return each character with how often it comes in a row",
        """
def run_lengths(text):
    runs = []
    count = 0
    for place in range(len(text)):
        count += 1
        if place + 1 == len(text) or text[place + 1] != text[place]:
            runs.append((text[place], count))
            count = 0
    return runs
""",
        ("place + 1 == len(text) or ", "place + 1 < len(text) and "),
        *(
            (value,)
            for value in ("aab", "a", "", "abc", "aaa", "aabb", "abba", "zzzz", "ab", "xxyxx")
        ),
    ),
    _program(
        "binary_search",
        "return the place of a number in a sorted list, -1 if it is not there",
        """
def binary_search(numbers, wanted):
    low = 0
    high = len(numbers) - 1
    while low <= high:
        middle = (low + high) // 2
        if numbers[middle] == wanted:
            return middle
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1
""",
        ("while low <= high", "while low < high"),
        ([1], 1),
        ([1, 3, 5], 5),
        ([1, 3, 5], 1),
        ([1, 3, 5], 3),
        ([], 2),
        ([1, 3], 2),
        ([2, 4, 6, 8], 8),
        ([2, 4, 6, 8], 2),
        ([2, 4, 6, 8], 5),
        ([1, 2], 2),
    ),
    _program(
        "leap_year",
        "say whether a year has a 29th of February",
        """
def leap_year(year):
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0
""",
        ("if year % 400 == 0:\n        return True\n    ", ""),
        *((value,) for value in (2000, 1900, 2400, 2100, 2024, 2023, 1600, 2004, 4, 1, 2200, 2012)),
    ),
    _program(
        "moving_sums",
        "return the sums of all windows of some length",
        """
def moving_sums(numbers, length):
    sums = []
    for start in range(len(numbers) - length + 1):
        total = 0
        for place in range(start, start + length):
            total += numbers[place]
        sums.append(total)
    return sums
""",
        ("- length + 1", "- length"),
        ([1, 2, 3], 2),
        ([1], 1),
        ([], 1),
        ([1, 2], 3),
        ([4, 5, 6, 7], 3),
        ([1, 1, 1], 1),
        ([2, 2], 2),
        ([5, 4, 3, 2, 1], 4),
    ),
    _program(
        "roman",
        "write a number in Roman numerals",
        """
def roman(number):
    text = ""
    for value, letters in ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while number >= value:
            text += letters
            number -= value
    return text
""",
        ("number >= value", "number > value"),
        *((value,) for value in (1, 4, 5, 9, 10, 3, 14, 19, 38, 7)),
    ),
    _program(
        "common_prefix",
        "return how many characters two texts have in common at their beginning",
        """
def common_prefix(one, other):
    length = 0
    while length < len(one) and length < len(other) and one[length] == other[length]:
        length += 1
    return length
""",
        ("length < len(one) and ", ""),
        ("ab", "abc"),
        ("abc", "ab"),
        ("", "a"),
        ("a", ""),
        ("abc", "abc"),
        ("abc", "abd"),
        ("x", "y"),
        ("flow", "flower"),
        ("aa", "aaa"),
        ("abcd", "abzz"),
    ),
    _program(
        "partition_even",
        "return even numbers before odd ones, else in their order",
        """
def partition_even(numbers):
    even = []
    odd = []
    for number in numbers:
        if number % 2 == 0:
            even.append(number)
        else:
            odd.append(number)
    return even + odd
""",
        ("even + odd", "odd + even"),
        ([1, 2],),
        ([2, 1],),
        ([],),
        ([3, 1],),
        ([4, 2, 1, 3],),
        ([0, 1],),
        ([5, 6, 7, 8],),
        ([-1, -2],),
        ([1, 0, 1],),
        ([2],),
    ),
    _program(
        "triangle",
        "say whether three lengths make a triangle",
        """
def triangle(a, b, c):
    longest = max(a, b, c)
    return longest > 0 and a + b + c - longest > longest
""",
        ("- longest > longest", "- longest >= longest"),
        (1, 2, 3),
        (3, 4, 5),
        (2, 2, 4),
        (1, 1, 1),
        (5, 1, 1),
        (0, 0, 0),
        (7, 3, 4),
        (2, 3, 4),
        (10, 10, 1),
        (1, 2, 2),
    ),
    _program(
        "second_largest",
        "return the second largest of different numbers, None if there is none",
        """
def second_largest(numbers):
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return None
    return ordered[len(ordered) - 2]
""",
        ("sorted(set(numbers))", "sorted(numbers)"),
        ([5, 5, 1],),
        ([1, 2, 3],),
        ([3, 3],),
        ([],),
        ([9, 9, 8, 8],),
        ([1],),
        ([4, 7, 7],),
        ([2, 1],),
        ([0, -1, 0],),
        ([6, 5, 4],),
    ),
    _program(
        "pascal_row",
        "return a row of Pascal's triangle, the first of which is [1]",
        """
def pascal_row(number):
    row = [1]
    for _ in range(number - 1):
        row = [1] + [row[place] + row[place + 1] for place in range(len(row) - 1)] + [1]
    return row
""",
        ("range(number - 1)", "range(number)"),
        *((value,) for value in (1, 2, 3, 4, 5, 6, 7, 8)),
    ),
    _program(
        "clamp_sum",
        "add numbers, but never go below zero or above a limit on the way",
        """
def clamp_sum(numbers, limit):
    total = 0
    for number in numbers:
        total += number
        if total < 0:
            total = 0
        if total > limit:
            total = limit
    return total
""",
        ("        if total < 0:\n            total = 0\n", ""),
        ([-5, 3], 10),
        ([3, 4], 5),
        ([-1], 5),
        ([5, -2, 9], 10),
        ([1, -9, 2, 2], 3),
        ([], 4),
        ([-2, -2, 4], 4),
        ([20], 7),
        ([1, 1], 1),
        ([6, -7, 1], 6),
    ),
    _program(
        "caesar",
        "move each lower-case letter by some places in the alphabet, round its end",
        """
def caesar(text, places):
    moved = ""
    for char in text:
        if "a" <= char <= "z":
            moved += chr((ord(char) - 97 + places) % 26 + 97)
        else:
            moved += char
    return moved
""",
        ("% 26", "% 27"),
        ("xyz", 3),
        ("abc", 1),
        ("z", 1),
        ("a b", 2),
        ("", 5),
        ("Hello", 1),
        ("mno", 13),
        ("zebra", 26),
        ("abc", -1),
        ("n", 14),
    ),
    _program(
        "flatten",
        "return the items of nested lists in one list",
        """
def flatten(items):
    flat = []
    for item in items:
        if isinstance(item, list):
            flat += flatten(item)
        else:
            flat.append(item)
    return flat
""",
        ("flatten(item)", "item"),
        ([[1, [2]]],),
        ([1, 2],),
        ([[[3]]],),
        ([],),
        ([[], [1, [2, [3]]]],),
        ([[1], [2]],),
        ([0, [[0]]],),
        ([[4, 5], 6],),
    ),
    _program(
        "steps_to_one",
        "count the steps from a number to 1: halve even ones, else three times the number and one",
        """
def steps_to_one(number):
    steps = 0
    while number != 1:
        if number % 2 == 0:
            number = number // 2
        else:
            number = 3 * number + 1
        steps += 1
    return steps
""",
        ("steps = 0", "steps = 1"),
        *((value,) for value in (1, 2, 3, 4, 6, 7, 12, 19)),
    ),
    _program(
        "median",
        "return the middle one of some numbers, the lower one of two",
        """
def median(numbers):
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2]
""",
        ("(len(ordered) - 1) // 2", "len(ordered) // 2"),
        ([1, 2],),
        ([3, 1, 2],),
        ([4, 1, 3, 2],),
        ([5],),
        ([9, 9, 1, 1],),
        ([2, 8, 4],),
        ([6, 5, 4, 3, 2, 1],),
        ([7, 7],),
        ([1, 3, 5, 7],),
        ([0, -2, 4],),
    ),
    _program(
        "insert_sorted",
        "put a number into a sorted list, behind its equals",
        """
def insert_sorted(numbers, number):
    place = 0
    while place < len(numbers) and numbers[place] <= number:
        place += 1
    return numbers[:place] + [number] + numbers[place:]
""",
        ("place < len(numbers) and ", "place + 1 < len(numbers) and "),
        ([1, 3], 5),
        ([1, 3], 2),
        ([2], 3),
        ([], 1),
        ([1, 2, 3], 4),
        ([5], 4),
        ([1, 1], 1),
        ([2, 4, 6], 5),
        ([0], 0),
        ([3, 3, 9], 10),
    ),
    _program(
        "transpose",
        "turn rows of equal length into columns",
        """
def transpose(rows):
    if len(rows) == 0:
        return []
    return [[row[place] for row in rows] for place in range(len(rows[0]))]
""",
        ("range(len(rows[0]))", "range(len(rows))"),
        ([[1, 2]],),
        ([[1, 2], [3, 4]],),
        ([[1], [2]],),
        ([],),
        ([[1, 2, 3], [4, 5, 6]],),
        ([[7]],),
        ([[1, 2], [3, 4], [5, 6]],),
        ([["a", "b", "c"]],),
    ),
    _program(
        "change",
        "return in how many coins of 25, 10, 5 and 1 a sum is paid",
        """
def change(amount):
    coins = 0
    for coin in (25, 10, 5, 1):
        coins += amount // coin
        amount = amount % coin
    return coins
""",
        ("amount = amount % coin", "amount = amount - coin"),
        *((value,) for value in (30, 0, 99, 25, 41, 5, 68, 1, 100, 14)),
    ),
    _program(
        "longest_word",
        "return the first of the longest words of a text",
        """
def longest_word(text):
    longest = ""
    for word in text.split():
        if len(word) > len(longest):
            longest = word
    return longest
""",
        ("len(word) > len(longest)", "len(word) >= len(longest)"),
        *(
            (value,)
            for value in (
                "aa bb",
                "a bb ccc",
                "one two",
                "",
                "x",
                "abc de f",
                "four five six",
                "  ",
                "to be or",
                "dddd ccc bbbb",
            )
        ),
    ),
)


def recovered_share(selected: float, chance: float, best: float) -> float:
    """Return the share of the gap between chance and the best possible choice that was covered."""
    return (selected - chance) / (best - chance)
