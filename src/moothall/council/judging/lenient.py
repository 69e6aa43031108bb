"""What follows the tests in other words, and holds for more than they ask for all the same: such a proof is left to a person."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from moothall.council.judging.rewritten import Rewriting, Rewritten, Run
from moothall.ranking.gates import name_cases
from moothall.ranking.rewriting.rewrite import Kind, places

_NOTHING = Rewritten({}, {})


async def find_lenient(run: Run, kinds: Mapping[Kind, Rewritten], cases: Sequence[str], rewriting: Rewriting, *, own: str) -> str:
    """Return what is to be said where tests are green whatever they assert, or where the patch says itself what is equal (`own`: the line)
    and that holds for what is near to what they expect; '' where neither is so.

    `kinds`: what was run before. Where an expectation was another one for certain, and the test turned red, it is asked.
    """
    first = next(iter(kinds.values()))
    decided = {case for some in kinds.get("expect", _NOTHING).cases.values() for case in some}
    left = [case for case in cases if decided.isdisjoint({case, *(place.case for place in places(case, tuple(first.files)))})]
    every = await rewriting(left, "expect", form="every") if left else _NOTHING
    near = await rewriting(cases, "expect", form="near") if own else _NOTHING
    every, near = (replace(first, files={**first.files, **made.files}, cases=made.cases) for made in (every, near))
    async with asyncio.TaskGroup() as group:
        asked, beside = (group.create_task(run(name, made)) for name, made in (("every", every), ("near", near)))
    if deaf := [case for case, result in every.results(asked.result()) if result == "passed"]:
        return f"these are green whatever they assert, so that nothing is asked there: {name_cases(deaf)}"
    if loose := [case for case, result in near.results(beside.result()) if result != "passed"]:
        return f"the patch says itself what is equal ({own}), and that holds for what is near to what is expected: {name_cases(loose)}"
    return ""
