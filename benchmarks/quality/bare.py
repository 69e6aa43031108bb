"""The model by itself: asked to complete the function, once for each temperature."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from benchmarks.quality.problems import Problem
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatRequest, Message
from moothall.domain.ids import digest
from moothall.ports import ChatModel

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_MAX_TOKENS = 512


async def sample(
    model: ChatModel, problem: Problem, temperature: float, seed: int
) -> tuple[str, Usage]:
    """Return one solution, as a whole file, and what it took."""
    requested = (
        "Complete this Python function. Reply with the whole function and nothing else.\n\n"
        f"```python\n{problem.prompt}```"
    )
    reply = await model.chat(
        ChatRequest(
            call_id=f"bare/{problem.name}/propose/{seed}",
            messages=(Message("user", requested),),
            max_tokens=_MAX_TOKENS,
            deadline=datetime.now(UTC) + timedelta(minutes=5),
            temperature=temperature,
            seed=int(digest(str(seed), problem.id, str(temperature))[:7], 16),
        )
    )
    return solution(problem, reply.text), reply.usage


def solution(problem: Problem, output_text: str) -> str:
    """Return the file that the reply means: what the prompt holds, then its code, whose definition
    is the later one.
    """
    blocks = _FENCED.findall(output_text) or [output_text]
    code = next((block for block in blocks if f"def {problem.name}" in block), blocks[0])
    return f"{problem.prompt}\n\n{code.strip(chr(10))}\n"
