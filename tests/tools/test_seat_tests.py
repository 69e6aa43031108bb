"""A test that a seat adds to an existing file decides, also under vitest, jest and mocha. The
runners come from a package registry.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.domain.evidence import EvidenceLevel
from support.judged_base import judged_base

pytestmark = pytest.mark.e2e
TASK = (
    "discount() gives wrong prices: 10 percent off 200 have to be 180. At present nothing is taken "
    "off."
)
CODE = "module.exports = function discount(price, percent) {\n  return price;\n};\n"
OLD = (
    "const assert = require('assert');\nconst discount = require('../shop.js');\n{}\nit('takes "
    "nothing', () => assert.strictEqual(discount(10, 0), 10));\n"
)
CASE = "it('takes percents', () => assert.strictEqual(discount(200, 10), 180));\n"
RUNNERS: Mapping[str, tuple[str, str, str]] = {
    "mocha": ("mocha", "mocha test/", ""),
    "jest": ("jest", "jest", ""),
    "vitest": ("vitest", "vitest run --globals", ""),
}


@pytest.mark.parametrize("name", RUNNERS)
async def test_a_case_in_an_existing_file_decides(tmp_path: Path, name: str) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; apt-get install nodejs npm brings it")
    package, script, head = RUNNERS[name]
    old = OLD.format(head)
    base = {
        "package.json": json.dumps(
            {
                "name": "shop",
                "version": "1.0.0",
                "scripts": {"test": script},
                "devDependencies": {package: "*"},
            }
        ),
        ".gitignore": "node_modules\n",
        "shop.js": CODE,
        "test/shop.test.js": old,
    }
    right = {
        "shop.js": CODE.replace("return price", "return price - (price * percent) / 100"),
        "test/shop.test.js": old + CASE,
    }
    wrong_files = {"shop.js": CODE.replace("return price", "return price - percent")}
    async with judged_base(tmp_path, base, task=TASK) as place:
        first, second = await place.rank(wrong_files, right)
    assert (first.seat, first.level) == ("agent-dev-002", EvidenceLevel.SELF_TESTED), (
        first.reasons,
        second.reasons,
    )
    assert (second.level, second.passed_gates) == (EvidenceLevel.UNPROVEN, True)
