"""Small algorithms with a fault, as in QuixBugs, where half of the cases are seen and the others judge: who is selected of three seats.

`python tests/forgeries/quixbugs.py [COUNCILS]` draws as many councils of each task by chance (seeded), and prints how often the selected
answer holds in all cases: without distinguishing inputs, with them, by chance, and by a perfect choice.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judge import PYTEST, court
from moothall.config import LimitSettings
from moothall.domain.proposal import Proposal
from moothall.ranking import rank

SEATS = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Sample:
    """A task: the function as it is, what right and wrong answers make of it, and cases, of which every second is seen."""

    code: str
    right: tuple[tuple[str, str], ...]
    wrong: tuple[tuple[str, str], ...]
    cases: tuple[tuple[tuple[Any, ...], Any], ...]

    def texts(self, *, right: bool) -> list[str]:
        """The file as right or wrong answers leave it."""
        return [self.code.replace(*change) for change in (self.right if right else self.wrong)]

    @property
    def name(self) -> str:
        """The function's."""
        return self.code.split("(")[0].removeprefix("def ")


SAMPLES = (
    Sample(
        "def quicksort(values):\n    if not values:\n        return []\n    first, rest = values[0], values[1:]\n"
        "    low = quicksort([x for x in rest if x < first])\n    return low + [first] + quicksort([x for x in rest if x > first])\n",
        (("x > first", "x >= first"), ("x > first", "not x < first")),
        (("return []", "return values"), ("x > first", "x > first - 1 and x != first")),
        ((([2, 1],), [1, 2]), (([1, 1, 2],), [1, 1, 2]), (([],), []), (([3, 3, 3],), [3, 3, 3])),
    ),
    Sample(
        "def gcd(a, b):\n    if b == 0:\n        return a\n    return gcd(a % b, b)\n",
        (("gcd(a % b, b)", "gcd(b, a % b)"), ("return gcd(a % b, b)", "while b:\n        a, b = b, a % b\n    return a")),
        (("return gcd(a % b, b)", "return b if a % b == 0 else a % b"), ("return gcd(a % b, b)", "return min(a, b)")),
        (((6, 3), 3), ((35, 21), 7), ((5, 0), 5), ((12, 18), 6)),
    ),
    Sample(
        "def bitcount(n):\n    count = 0\n    while n:\n        n >>= 1\n        count += 1\n    return count\n",
        (("        n >>= 1\n        count += 1\n", "        count += n & 1\n        n >>= 1\n"), ("n >>= 1", "n &= n - 1")),
        (("return count", "return min(count, 8)"), ("count += 1", "count += 1 if count < 7 else 0")),
        (((1,), 1), ((127,), 7), ((3,), 2), ((128,), 1)),
    ),
    Sample(
        "def find_first(values, x):\n    low, high = 0, len(values)\n    while low < high - 1:\n        mid = (low + high) // 2\n        if values[mid] < x:\n"
        "            low = mid + 1\n        else:\n            high = mid\n    return low if low < len(values) and values[low] == x else -1\n",
        (("low < high - 1", "low < high"), ("low < high - 1", "low != high")),
        (("low < high - 1", "low < high - 2"), ("low < high - 1", "low + 1 < high and values[low] != x")),
        ((([1, 3, 5], 3), 1), (([2], 2), 0), (([1, 3, 5], 1), 0), (([1, 2], 2), 1), (([1, 4], 9), -1), (([3, 3], 3), 0)),
    ),
    Sample(
        "def flatten(values):\n    found = []\n    for item in values:\n        if isinstance(item, list):\n            found.append(flatten(item))\n"
        "        else:\n            found.append(item)\n    return found\n",
        (("found.append(flatten(item))", "found.extend(flatten(item))"), ("found.append(flatten(item))", "found += flatten(item)")),
        (("found.append(flatten(item))", "found.extend(item)"), ("found.append(flatten(item))", "found += item")),
        ((([1, [2]],), [1, 2]), (([[[1]]],), [1]), (([],), []), (([1, [2, [3, [4]]]],), [1, 2, 3, 4])),
    ),
    Sample(
        "def balanced(text):\n    depth = 0\n    for mark in text:\n        if mark == '(':\n            depth += 1\n        else:\n            depth -= 1\n"
        "            if depth < 0:\n                return False\n    return True\n",
        (("return True", "return depth == 0"), ("return True", "return not depth")),
        (("return True", "return text.count('(') <= 1"), ("return True", "return len(text) % 2 == 0")),
        ((("(",), False), (("((",), False), (("()",), True), (("(()())",), True), (("())",), False), (("((()",), False)),
    ),
    Sample(
        "def sieve(most):\n    primes = []\n    for n in range(2, most + 1):\n        if any(n % p > 0 for p in primes):\n            primes.append(n)\n    return primes\n",
        (("any(n % p > 0", "all(n % p > 0"), ("if any(n % p > 0 for p in primes)", "if not any(n % p == 0 for p in primes)")),
        (("if any(n % p > 0 for p in primes)", "if n % 2 or n == 2"), ("if any(n % p > 0 for p in primes)", "if n < 4 or n % 2")),
        (((2,), [2]), ((10,), [2, 3, 5, 7]), ((3,), [2, 3]), ((1,), []), ((4,), [2, 3]), ((15,), [2, 3, 5, 7, 11, 13])),
    ),
    Sample(
        "def to_base(number, base):\n    digits = '0123456789abcdef'\n    found = ''\n    while number > 0:\n        found = found + digits[number % base]\n"
        "        number //= base\n    return found\n",
        (("found + digits[number % base]", "digits[number % base] + found"), ("return found", "return found[::-1]")),
        (("return found", "return ''.join(sorted(found, reverse=True))"), ("return found", "return found if len(set(found)) == 1 else found[1:] + found[:1]")),
        (((2, 2), "10"), ((6, 2), "110"), ((8, 2), "1000"), ((11, 2), "1011"), ((31, 16), "1f"), ((241, 16), "f1")),
    ),
)  # fmt: skip


def _test(sample: Sample) -> str:
    cases = "".join(f"    assert {sample.name}({', '.join(map(repr, given))}) == {want!r}\n" for given, want in sample.cases[::2])
    return f"from shop.code import {sample.name}\n\n\ndef test_it():\n{cases}"


def _holds(sample: Sample, text: str) -> bool:
    space: dict[str, Any] = {}
    exec(text, space)  # noqa: S102 - written here
    return all(space[sample.name](*given) == want for given, want in sample.cases)


async def one(sample: Sample, draws: Sequence[tuple[str, ...]], solved: dict[str, float]) -> None:
    """Judge the councils of a task, and count."""
    files = {"shop/__init__.py": "", "shop/code.py": sample.code, "tests/test_code.py": _test(sample)}
    with tempfile.TemporaryDirectory() as folder:
        async with court(Path(folder), files, PYTEST) as place:
            for number, texts in enumerate(draws):
                right = dict(zip(SEATS, [_holds(sample, text) for text in texts], strict=True))
                solved["by chance"] += sum(right.values()) / len(SEATS)
                solved["perfect"] += any(right.values())
                bench = place.bench(f"{sample.name.replace('_', '-')}-{number}")
                diffs = [place.diff({"shop/code.py": text}) for text in texts]
                judged = [await bench.judge(Proposal(seat, "dev", "", diff)) for seat, diff in zip(SEATS, diffs, strict=True)]
                for what, limits in (("without inputs", LimitSettings(inputs=0)), ("with inputs", LimitSettings())):
                    told = await place.bench(f"{sample.name.replace('_', '-')}-{number}", limits).distinguish(judged)
                    solved[what] += right[rank([item.candidate for item in told])[0].seat]
    print(sample.name, {what: round(count, 1) for what, count in solved.items()}, flush=True)


async def main(councils: int) -> None:
    """Draw so many councils of each task."""
    solved = dict.fromkeys(("by chance", "without inputs", "with inputs", "perfect"), 0.0)
    for sample in SAMPLES:
        chance = random.Random(sample.name)  # noqa: S311 - nothing secret
        known = {right: sample.texts(right=right) for right in (True, False)}
        assert all(_holds(sample, text) for text in known[True])
        draws = [tuple(chance.choice(known[chance.random() < 0.5]) for _ in SEATS) for _ in range(councils)]
        await one(sample, draws, solved)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4))
