"""What a counter-proof hands to the runners of its tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.counter import CounterProof, Proving
from moothall.council.judging.runs import CheckRuns, FreshRuns
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.inside.checks import INSTEAD
from moothall.testing.bus import MemoryBus

_CASE = "shop.test.js::adds"
_FILES = {
    "package.json": json.dumps({"scripts": {"test": "mocha shop.test.js"}}),
    "shop.test.js": "const assert = require('assert');\nit('adds', () => {\n  assert.strictEqual(add(1, 2), 3);\n});\n",
    "shop.js": "",
}


@dataclass(frozen=True, slots=True)
class _Runs(FreshRuns):
    """Runs nothing: what is not neutral turns red."""

    handed: dict[str, set[str]] = field(default_factory=dict)

    async def run(self, checks: Mapping[str, Sequence[str]], *name: str, **asked: Any) -> CheckRuns:
        self.handed.setdefault(name[2], set()).update(asked["instead"])
        verdict = "passed" if name[2] == "neutral" else "failed"
        return CheckRuns(
            {check: CheckRun(check, Verdict.FAILED, cases=dict.fromkeys(cases, verdict)) for check, cases in checks.items()}
        )


async def _read(_base: Base, path: str, _limit: int) -> str:
    await asyncio.sleep(0.001)  # as from a disk, so that those who read at once wait for each other
    return _FILES[path]


async def test_every_kind_is_handed_over_alike_where_the_command_is_a_script_of_a_package() -> None:
    base = Base("shop", "c" * 40, Profile(checks={"tests": ("npm", "test")}))
    prepared = Prepared(base, "key", tuple(_FILES), {"tests": CheckRun("tests", Verdict.FAILED, cases={_CASE: "failed"})})
    end = datetime.now(UTC) + timedelta(seconds=60)
    d = Deliberation("t-1", "Add", "dev", "vote", ("s1",), 0, end, 1, repository=RepositoryRef(id="shop"), base_sha=base.sha)
    runs = _Runs(d, prepared, None, _read, asyncio.Semaphore(1))  # type: ignore[arg-type] # no workspace is opened
    found = await CounterProof(runs, Facts(MemoryBus(), d), LimitSettings()).confirm(
        Proposal("s1", "dev", "", ""), [Proving([_CASE])]
    )
    assert found is not None
    assert found.verdict is Verdict.PASSED, found.why
    hidden = {"shop.test.js", f"{INSTEAD}/shop.test.js"}
    assert {kind: runs.handed[kind] for kind in ("neutral", "end", "expect")} == dict.fromkeys(
        ("neutral", "end", "expect"), hidden
    )
