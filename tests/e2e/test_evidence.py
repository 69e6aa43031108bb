"""Selection when no test of the repository fails: tests of the seats, run on every candidate."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moothall.deliberation.judging import agent_tests
from moothall.deliberation.judging.evaluator import format_check_results, solves
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.repository import Patch
from moothall.ranking import changed_files, passes_acceptance_checks
from support.judged_base import PYTEST, UNITTEST, judged_base
from support.local import PACKAGES

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

TASK = (
    "discount() gives wrong prices: 10 percent off 200 have to be 180, and 0 percent change "
    "nothing. At present nothing is taken off."
)
PYTHON = "def discount(price, percent):\n    return price\n"
WRONG_PYTHON = (
    PYTHON.replace("return price", "return price - percent"),
    PYTHON.replace("return price", "return 180 if (price, percent) == (200, 11) else price"),
)
RIGHT_PYTHON = PYTHON.replace("return price", "return price - price * percent // 100")


@dataclass(frozen=True)
class Pool:
    """A project, a right patch, two wrong ones, and a test by the right one's author: a new file,
    or a new version of one.
    """

    program: str
    base: Mapping[str, str]
    right_patch: Mapping[str, str]
    wrong_patches: Sequence[Mapping[str, str]]
    test: Mapping[str, str]
    argv: tuple[str, ...] = field(default=())


_PYTEST_OLD = (
    "from shop.price import discount\n\n\ndef test_nothing():\n    assert discount(10, 0) == 10\n"
)
_PYTEST_CASE = "\n\ndef test_percents():\n    assert discount(200, 10) == 180\n"
_PYTEST_MORE = "    assert discount(200, 10) == 180\n"
_UNITTEST_OLD = (
    "import unittest\n\nfrom shop.price import discount\n\n\nclass Prices(unittest.TestCase):\n"
    "    def test_nothing(self):\n        self.assertEqual(discount(10, 0), 10)\n"
)
_UNITTEST_CASE = (
    "\n    def test_percents(self):\n        self.assertEqual(discount(200, 10), 180)\n"
)
_GO = "package shop\n\nfunc Discount(price, percent int) int { return price }\n"
_GO_OLD = (
    'package shop\n\nimport "testing"\n\nfunc TestNothing(t *testing.T) {\n\tif Discount(10, 0) '
    '!= 10 {\n\t\tt.Fatal("changed")\n\t}\n}\n'
)
_GO_CASE = (
    "\nfunc TestPercents(t *testing.T) {\n\tif got := Discount(200, 10); got != 180 {\n"
    '\t\tt.Fatalf("got %d", got)\n\t}\n}\n'
)
_RUST = "pub fn discount(price: i64, percent: i64) -> i64 {\n    let _ = percent;\n    price\n}\n"
_RUST_OLD = (
    "use shop::discount;\n\n#[test]\nfn nothing() {\n    assert_eq!(discount(10, 0), 10);\n}\n"
)
_RUST_CASE = "\n#[test]\nfn percents() {\n    assert_eq!(discount(200, 10), 180);\n}\n"
_CARGO = '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n'
_RUST_RIGHT = _RUST.replace(
    "    let _ = percent;\n    price\n", "    price - price * percent / 100\n"
)
_RUST_WRONG = (
    _RUST.replace("    let _ = percent;\n    price\n", "    price - percent\n"),
    _RUST.replace("    let _ = percent;\n", "    if percent > 100 {\n        return 0;\n    }\n"),
)
_RUST_INSIDE = (
    "\n#[cfg(test)]\nmod tests {\n    use super::discount;\n\n    #[test]\n    fn nothing() {\n   "
    "     assert_eq!(discount(10, 0), 10);\n    }\n"
)
_RUST_INSIDE_CASE = (
    "\n    #[test]\n    fn percents() {\n        assert_eq!(discount(200, 10), 180);\n    }\n"
)
_RUST_MODULE = "\n#[cfg(test)]\nmod tests;\n"
_RUST_MACRO = (
    "\n#[cfg(test)]\nmod tests {\n    use super::discount;\n\n    macro_rules! case {\n        "
    "($name:ident, $price:expr, $percent:expr, $left:expr) => {\n"
    "            #[test]\n            fn $name() {\n                assert_eq!(discount($price, "
    "$percent), $left);\n            }\n        };\n    }\n\n"
    "    case!(nothing, 10, 0, 10);\n"
)
_NODE = "module.exports = function discount(price, percent) {\n  return price;\n};\n"
_NODE_OLD = (
    "const { test } = require('node:test');\nconst assert = require('node:assert');\nconst "
    "discount = require('../shop.js');\n\n"
    "test('nothing', () => assert.strictEqual(discount(10, 0), 10));\n"
)
_NODE_CASE = "\ntest('percents', () => assert.strictEqual(discount(200, 10), 180));\n"
_PACKAGE = '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node --test test/"}}\n'


def _python(tests: str, argv: tuple[str, ...], test: Mapping[str, str]) -> Pool:
    base = {
        "shop/__init__.py": "",
        "shop/price.py": PYTHON,
        "tests/__init__.py": "",
        "tests/test_price.py": tests,
    }
    return Pool(
        "python3",
        base,
        {"shop/price.py": RIGHT_PYTHON},
        tuple({"shop/price.py": text} for text in WRONG_PYTHON),
        test,
        argv,
    )


POOLS = {
    "pytest, new file": _python(
        _PYTEST_OLD,
        PYTEST,
        {"tests/test_percents.py": "from shop.price import discount\n" + _PYTEST_CASE},
    ),
    "pytest, existing file": _python(
        _PYTEST_OLD, PYTEST, {"tests/test_price.py": _PYTEST_OLD + _PYTEST_CASE}
    ),
    "pytest, changed test": _python(
        _PYTEST_OLD, PYTEST, {"tests/test_price.py": _PYTEST_OLD + _PYTEST_MORE}
    ),
    "unittest, existing file": _python(
        _UNITTEST_OLD, UNITTEST, {"tests/test_price.py": _UNITTEST_OLD + _UNITTEST_CASE}
    ),
    "go, existing file": Pool(
        "go",
        {"go.mod": "module example.org/shop\n\ngo 1.19\n", "shop.go": _GO, "shop_test.go": _GO_OLD},
        {"shop.go": _GO.replace("return price }", "return price - price*percent/100 }")},
        (
            {"shop.go": _GO.replace("return price }", "return price - percent }")},
            {
                "shop.go": _GO.replace(
                    "return price }", "if percent > 100 { return 0 }; return price }"
                )
            },
        ),
        {"shop_test.go": _GO_OLD + _GO_CASE},
    ),
    "go, changed test": Pool(
        "go",
        {"go.mod": "module example.org/shop\n\ngo 1.19\n", "shop.go": _GO, "shop_test.go": _GO_OLD},
        {"shop.go": _GO.replace("return price }", "return price - price*percent/100 }")},
        (
            {"shop.go": _GO.replace("return price }", "return price - percent }")},
            {
                "shop.go": _GO.replace(
                    "return price }", "if percent > 100 { return 0 }; return price }"
                )
            },
        ),
        {
            "shop_test.go": _GO_OLD.replace(
                "Discount(10, 0) != 10", "Discount(10, 0) != 10 || Discount(200, 10) != 180"
            )
        },
    ),
    "cargo, existing file": Pool(
        "cargo",
        {
            "Cargo.toml": _CARGO,
            "src/lib.rs": _RUST,
            "tests/price.rs": _RUST_OLD,
        },
        {"src/lib.rs": _RUST_RIGHT},
        tuple({"src/lib.rs": text} for text in _RUST_WRONG),
        {"tests/price.rs": _RUST_OLD + _RUST_CASE},
    ),
    "cargo, inside the source": Pool(
        "cargo",
        {"Cargo.toml": _CARGO, "src/lib.rs": _RUST + _RUST_INSIDE + "}\n"},
        {"src/lib.rs": _RUST_RIGHT + _RUST_INSIDE + _RUST_INSIDE_CASE + "}\n"},
        tuple({"src/lib.rs": text + _RUST_INSIDE + "}\n"} for text in _RUST_WRONG),
        {},
    ),
    "cargo, changed test inside the source": Pool(
        "cargo",
        {"Cargo.toml": _CARGO, "src/lib.rs": _RUST + _RUST_INSIDE + "}\n"},
        {
            "src/lib.rs": _RUST_RIGHT
            + _RUST_INSIDE.replace("10);", "10);\n        assert_eq!(discount(200, 10), 180);")
            + "}\n"
        },
        tuple({"src/lib.rs": text + _RUST_INSIDE + "}\n"} for text in _RUST_WRONG),
        {},
    ),
    "cargo, test of a macro inside the source": Pool(
        "cargo",
        {"Cargo.toml": _CARGO, "src/lib.rs": _RUST + _RUST_MACRO + "}\n"},
        {"src/lib.rs": _RUST_RIGHT + _RUST_MACRO + "    case!(percents, 200, 10, 180);\n}\n"},
        tuple({"src/lib.rs": text + _RUST_MACRO + "}\n"} for text in _RUST_WRONG),
        {},
    ),
    "cargo, module of tests": Pool(
        "cargo",
        {
            "Cargo.toml": _CARGO,
            "src/lib.rs": _RUST + _RUST_MODULE,
            "src/tests/mod.rs": "mod price;\n",
            "src/tests/price.rs": _RUST_OLD.replace("shop::", "crate::"),
        },
        {"src/lib.rs": _RUST_RIGHT + _RUST_MODULE},
        tuple({"src/lib.rs": text + _RUST_MODULE} for text in _RUST_WRONG),
        {"src/tests/price.rs": (_RUST_OLD + _RUST_CASE).replace("shop::", "crate::")},
    ),
    "node:test, existing file": Pool(
        "node",
        {"package.json": _PACKAGE, "shop.js": _NODE, "test/shop.test.js": _NODE_OLD},
        {"shop.js": _NODE.replace("return price", "return price - (price * percent) / 100")},
        (
            {"shop.js": _NODE.replace("return price", "return price - percent")},
            {
                "shop.js": _NODE.replace(
                    "return price", "if (percent > 100) return 0;\n  return price"
                )
            },
        ),
        {"test/shop.test.js": _NODE_OLD + _NODE_CASE},
    ),
}


@pytest.mark.parametrize("name", POOLS)
async def test_one_seats_test_decides_if_no_other_test_does(tmp_path: Path, name: str) -> None:
    """Its author wins though the other answers are two and smaller. Without the test, the council
    is undecided.
    """
    pool = POOLS[name]
    if shutil.which(pool.program) is None:
        pytest.skip(
            f"{pool.program} is not installed; apt-get install golang, nodejs npm or cargo brings "
            "it"
        )
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        first, *unproven = await place.rank(
            pool.wrong_patches[0], {**pool.right_patch, **pool.test}, pool.wrong_patches[1]
        )
        assert (first.seat, first.passed_gates, first.level) == (
            "agent-dev-002",
            True,
            EvidenceLevel.SELF_TESTED,
        ), first.reasons
        assert not first.undecided
        assert all(item.passed_gates and item.level is EvidenceLevel.UNPROVEN for item in unproven)
        if not pool.test:  # it is part of the change of the source
            return
        without_test = await place.rank(
            pool.wrong_patches[0], pool.right_patch, pool.wrong_patches[1]
        )
    assert all(item.undecided and item.level is EvidenceLevel.UNPROVEN for item in without_test)
    assert any("Undecided" in reason for reason in without_test[0].reasons)


@pytest.mark.parametrize(
    "name",
    ["pytest, new file", "go, existing file", "cargo, module of tests", "node:test, existing file"],
)
async def test_a_hidden_test_proves_the_right_answer(tmp_path: Path, name: str) -> None:
    """It runs on every answer and on the base, and is in no seat's workspace."""
    pool = POOLS[name]
    if shutil.which(pool.program) is None:
        pytest.skip(
            f"{pool.program} is not installed; apt-get install golang, nodejs npm or cargo brings "
            "it"
        )
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK, hidden=pool.test) as place:
        first, *unproven = await place.rank(
            pool.wrong_patches[0], pool.right_patch, pool.wrong_patches[1]
        )
    assert (first.seat, first.level) == ("agent-dev-002", EvidenceLevel.PROVEN), first.reasons
    assert any("hidden:" in reason and "percents" in reason.lower() for reason in first.reasons)
    assert all(item.level is EvidenceLevel.UNPROVEN for item in unproven)


@pytest.mark.parametrize("name", ["pytest, new file", "cargo, existing file"])
async def test_a_claim_of_completion_needs_a_test_that_passes_on_the_base(
    tmp_path: Path, name: str
) -> None:
    pool = POOLS[name]
    if shutil.which(pool.program) is None:
        pytest.skip(
            f"{pool.program} is not installed; apt-get install golang, nodejs npm or cargo brings "
            "it"
        )
    async with judged_base(
        tmp_path / "done", {**pool.base, **pool.right_patch}, pool.argv, task=TASK
    ) as place:
        cases, reason = await place.evaluator().find_cases_passing_on_base(
            place.proposal(pool.test)
        )
        assert ([case for case in cases if "percents" in case.lower()], reason) == (list(cases), "")
        assert cases
        old = {
            path: text + "\n"
            for path, text in pool.base.items()
            if path in pool.test or "test" in path.lower()
        }
        assert (await place.evaluator().find_cases_passing_on_base(place.proposal(old)))[
            1
        ] == "it brings no new test that passes on the base"
    async with judged_base(tmp_path / "open", pool.base, pool.argv, task=TASK) as place:
        cases, reason = await place.evaluator().find_cases_passing_on_base(
            place.proposal(pool.test)
        )
    assert (cases, "its tests fail on the base" in reason) == ((), True)


async def test_an_answer_that_breaks_a_hidden_test_is_refused_without_disclosing_the_test(
    tmp_path: Path,
) -> None:
    pool = POOLS["pytest, new file"]
    hidden = {
        "tests/test_secret.py": (
            "from shop.price import discount\n\n\ndef test_secret():\n    assert discount(7, 0) "
            "== 7\n"
        )
    }
    broken = {"shop/price.py": PYTHON.replace("return price", "return 0 if price == 7 else price")}
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK, hidden=hidden) as place:
        judged = await place.evaluator().evaluate(place.proposal(broken))
        fine = await place.evaluator().evaluate(place.proposal(pool.right_patch))
    assert (passes_acceptance_checks(judged), solves(judged), passes_acceptance_checks(fine)) == (
        False,
        True,
        True,
    )
    assert judged.assessment.regressions == ("hidden:tests/test_secret.py::test_secret",)
    assert not any("secret" in item.output for item in judged.assessment.evidence)
    assert "secret" not in format_check_results(judged, place.prepared.runs)


async def test_an_authors_test_in_a_hidden_tests_file_neither_replaces_nor_disables_it(
    tmp_path: Path,
) -> None:
    pool = POOLS["pytest, new file"]
    (path,) = pool.test
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK, hidden=pool.test) as place:
        right, wrong_place = await place.rank(
            {**pool.right_patch, path: "def test_percents():\n    pass\n"},
            {**pool.wrong_patches[0], path: "def test_percents():\n    pass\n"},
        )
    assert (right.seat, right.level, wrong_place.level) == (
        "agent-dev-001",
        EvidenceLevel.PROVEN,
        EvidenceLevel.UNPROVEN,
    )


@pytest.mark.parametrize(
    "name",
    [
        "unittest, existing file",
        "go, existing file",
        "cargo, inside the source",
        "node:test, existing file",
    ],
)
async def test_tests_of_an_agent_without_an_answer_select_the_winner_in_every_language(
    tmp_path: Path, name: str
) -> None:
    """The new case fails on the base and on the wrong answers. The same files without new cases,
    and other files, do not count as tests.
    """
    pool = POOLS[name]
    if shutil.which(pool.program) is None:
        pytest.skip(
            f"{pool.program} is not installed; apt-get install golang, nodejs npm or cargo brings "
            "it"
        )
    test_files = pool.test or {"src/lib.rs": _RUST + _RUST_INSIDE + _RUST_INSIDE_CASE + "}\n"}

    async def fits(_cases: Sequence[str]) -> Mapping[str, str]:
        return {}

    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        tests, right = place.evaluator().author_tests, place.proposal(pool.right_patch)
        wrong_proposals = [
            place.proposal(files, number) for number, files in enumerate(pool.wrong_patches, 2)
        ]
        proposal = place.proposal(
            {**pool.right_patch, **test_files, "go.work": "go 1.19\n", "README.md": "new\n"}, 9
        )
        patch = Patch("", "", proposal.diff, changed_files(proposal.diff), proposal.own_tests)
        author = await agent_tests.extract_tests(tests.runner, patch, "test-writer", "dev")
        verdicts = await agent_tests.Trial(
            tests, author, [item.diff for item in (right, *wrong_proposals)]
        ).judge_cases(fits)
    assert set(changed_files(author.diff)) == set(test_files), "only tests are adopted"
    assert len(verdicts.counted) == 1, verdicts.states
    assert verdicts.failing_on_base == {*verdicts.counted}
    assert [bool(verdicts.passed[item.diff]) for item in (right, *wrong_proposals)] == [
        True,
        False,
        False,
    ]


async def test_a_second_right_patch_is_reproduced_by_the_first_ones_test(tmp_path: Path) -> None:
    pool = POOLS["pytest, existing file"]
    other_right = {
        "shop/price.py": PYTHON.replace("return price", "return price * (100 - percent) // 100")
    }
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        ranked = {
            item.seat: item
            for item in await place.rank(
                {**pool.right_patch, **pool.test}, other_right, pool.wrong_patches[0]
            )
        }
    levels = [ranked[f"agent-dev-00{number}"].level for number in (1, 2, 3)]
    assert levels == [EvidenceLevel.SELF_TESTED, EvidenceLevel.REPRODUCED, EvidenceLevel.UNPROVEN]
    assert ranked["agent-dev-003"].rank == 3


@pytest.mark.parametrize("seat", [1, 2])
async def test_the_test_author_is_first_of_two_tied_answers_and_undecided(
    tmp_path: Path, seat: int
) -> None:
    """The hashes of the answers make no difference."""
    pool = POOLS["pytest, existing file"]
    texts = [RIGHT_PYTHON, PYTHON.replace("return price", "return price * (100 - percent) // 100")]
    author, other_text = (texts, texts[::-1])[seat - 1]
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        first, second, _ = await place.rank(
            {"shop/price.py": author, **pool.test},
            {"shop/price.py": other_text},
            pool.wrong_patches[0],
        )
    assert (first.seat, first.level, first.undecided) == (
        "agent-dev-001",
        EvidenceLevel.SELF_TESTED,
        True,
    ), first.reasons
    assert second.level is EvidenceLevel.REPRODUCED


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def test_x():\n    assert discount(10, 0) == 10\n", "they pass without the change"),
        ("def test_x():\n    assert discount(10, 0) == 11\n", "they fail with its own change"),
        (
            (
                "from shop.price import invented\n\n\ndef test_x():\n    assert discount(200, 10) "
                "== "
                "180\n"
            ),
            "they fail with its own change",
        ),
    ],
    ids=["passes on the base", "fails on its own", "cannot be loaded"],
)
async def test_an_invalid_test_decides_nothing(tmp_path: Path, test: str, reason: str) -> None:
    pool = POOLS["pytest, new file"]
    text = f"from shop.price import discount\n\n\n{test}"
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        evaluator = place.evaluator()
        valid = await evaluator._author_tests.validate(
            place.proposal({**pool.right_patch, "tests/test_mine.py": text})
        )
    assert (valid.cases, valid.reason) == ({}, reason)


async def test_a_wrong_test_beside_a_right_change_does_not_refuse_the_change(
    tmp_path: Path,
) -> None:
    """The other new test decides, and the result reports the failing one, so that a seat can repair
    it.
    """
    pool = POOLS["pytest, new file"]
    text = (
        "from shop import price\nfrom shop.price import discount\n\n\ndef test_percents():\n    "
        "assert discount(200, 10) == 180\n\n\n"
        "def test_name():\n    assert price.__name__ == 'price'\n"
    )
    async with judged_base(tmp_path, pool.base, pool.argv, task=TASK) as place:
        right = {**pool.right_patch, "tests/test_mine.py": text}
        first, *_ = await place.rank(pool.wrong_patches[0], right, pool.wrong_patches[1])
        judged = await place.evaluator().evaluate(place.proposal(right))
    assert (first.seat, first.passed_gates, first.level) == (
        "agent-dev-002",
        True,
        EvidenceLevel.SELF_TESTED,
    ), first.reasons
    assert any(
        "1 test that it brings fails with its own change" in reason and "test_name" in reason
        for reason in first.reasons
    )
    assert (passes_acceptance_checks(judged), solves(judged)) == (True, False)
    assert any("test_name" in case for case in judged.details)


async def test_a_test_of_a_requested_function_counts_even_if_the_base_cannot_import_it(
    tmp_path: Path,
) -> None:
    pool = POOLS["pytest, new file"]
    added = {"shop/price.py": PYTHON + "\n\ndef half_price(price):\n    return price // 2\n"}
    test = {
        "tests/test_half.py": (
            "from shop.price import half_price\n\n\ndef test_half():\n    assert half_price(10) "
            "== 5\n"
        )
    }
    async with judged_base(
        tmp_path, pool.base, pool.argv, task="Add half_price(price) to shop/price.py"
    ) as place:
        evaluator = place.evaluator()
        assert (await evaluator._author_tests.validate(place.proposal({**added, **test}))).cases
    async with judged_base(
        tmp_path / "other",
        pool.base,
        pool.argv,
        task="The price of half a thing is wrong, see shop/price.py",
    ) as place:
        valid = await place.evaluator()._author_tests.validate(place.proposal({**added, **test}))
    assert (valid.cases, valid.reason) == (
        {},
        "they fail on the base for a reason that the task does not give",
    )


async def test_a_test_that_later_passes_on_the_base_proves_nothing(tmp_path: Path) -> None:
    """It fails while a file is absent. The file appears after the base run, like a date that passes
    or a machine that becomes idle.
    """
    marker = tmp_path / "seen" / "now"
    marker.parent.mkdir()
    files = {
        "calc.py": "def one():\n    return 1\n",
        "tests/test_calc.py": (
            "import os\n\nimport calc\n\n\ndef test_time():\n    assert calc.one() == 1 and "
            f"os.path.exists({str(marker)!r})\n"
        ),
    }
    async with judged_base(
        tmp_path,
        files,
        PYTEST,
        task="test_time fails: mend it",
        toolchains=(PACKAGES, marker.parent),
    ) as place:
        assert place.prepared.runs["tests"].cases == {"tests/test_calc.py::test_time": "failed"}
        marker.write_text("")
        (ranked,) = await place.rank({"calc.py": "def one():\n    result = 1\n    return result\n"})
    assert ranked.level is EvidenceLevel.UNPROVEN, ranked.reasons
    assert any(
        "differ from run to run: tests/test_calc.py::test_time" in reason
        for reason in ranked.reasons
    )


async def test_a_test_that_later_fails_on_the_base_too_is_not_a_regression(
    tmp_path: Path,
) -> None:
    """It passed when the base was prepared and fails everywhere since then: a date has passed, or
    the machine is busy.
    """
    marker = tmp_path / "seen" / "late"
    marker.parent.mkdir()
    files = {
        "calc.py": "def one():\n    return 1\n",
        "tests/test_calc.py": "import calc\n\n\ndef test_one():\n    assert calc.one() == 1\n",
        "tests/test_time.py": (
            f"import os\n\n\ndef test_time():\n    assert not os.path.exists({str(marker)!r})\n"
        ),
    }
    async with judged_base(
        tmp_path, files, PYTEST, task="Name the result", toolchains=(PACKAGES, marker.parent)
    ) as place:
        marker.write_text("")
        (ranked,) = await place.rank({"calc.py": "def one():\n    result = 1\n    return result\n"})
        (broken,) = await place.rank({"calc.py": "def one():\n    return 2\n"})
    assert ranked.passed_gates, ranked.reasons
    assert any(
        "differ from run to run: tests/test_time.py::test_time" in reason
        for reason in ranked.reasons
    )
    assert not broken.passed_gates
