"""The bare model: one chat message with the code of a problem, without Moothall."""

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


async def sample_solution(
    model: ChatModel, problem: Problem, temperature: float, seed: int
) -> tuple[str, Usage]:
    """Return a solution, as the content of the file, and its usage."""
    prompt = (
        "Complete this Python function. Reply with the whole function and nothing else.\n\n"
        f"```python\n{problem.prompt}```"
    )
    reply = await model.chat(
        ChatRequest(
            call_id=f"bare/{problem.name}/propose/{seed}",
            messages=(Message("user", prompt),),
            max_tokens=_MAX_TOKENS,
            deadline=datetime.now(UTC) + timedelta(minutes=5),
            temperature=temperature,
            seed=int(digest(str(seed), problem.id, str(temperature))[:7], 16),
        )
    )
    return parse_solution(problem, reply.text), reply.usage


def parse_solution(problem: Problem, reply_text: str) -> str:
    """Return the content of the file: the prompt, and then the code of the reply, whose definition
    replaces that of the prompt.
    """
    blocks = _FENCED.findall(reply_text) or [reply_text]
    code = next((block for block in blocks if f"def {problem.name}" in block), blocks[0])
    return f"{problem.prompt}\n\n{code.strip(chr(10))}\n"
