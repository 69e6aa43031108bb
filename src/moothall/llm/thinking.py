"""Split a reply into reasoning and answer where the server leaves the reasoning in the text. No
I/O.
"""

from __future__ import annotations

import json
import re

_OPENED = re.compile(r"\s*(?:<(think|thinking|thought|seed:think)>|\[(THINK)\])")
_CLOSED = re.compile(r"</(?:think|thinking|seed:think)>|\[/THINK\]")
_FINAL = re.compile(r"<\|channel\|>final(?:\s*<\|constrain\|>\w+)?<\|message\|>")
_BEGUN = re.compile(r"<(?:tool|python|finish|tool_call|function)\b[^>]*>")
_FENCE = "```"


def split_thinking(text: str) -> tuple[str, str]:
    """Return reasoning and answer. Reasoning is between tags at the beginning, or all before a lone
    closing tag, whose opening one chat templates put into the prompt. A closing tag in the string
    of a JSON reply or in a block of code belongs to the answer.
    """
    if found := _FINAL.search(text):
        return text[: found.start()], text[found.end() :].partition("<|")[0]
    if opened := _OPENED.match(text):
        close = f"</{opened[1]}>" if opened[1] else f"[/{opened[2]}]"
        thought, closed, answer = text[opened.end() :].partition(close)
        return thought, answer.lstrip("\n") if closed else ""
    closed_tag = _CLOSED.search(text)
    if closed_tag is None or _is_answer(text[: closed_tag.start()]):
        return "", text
    return text[: closed_tag.start()], text[closed_tag.end() :].lstrip("\n")


def _is_answer(before: str) -> bool:
    """Return whether what stands before a lone closing tag is a part of the answer."""
    if _BEGUN.search(before) or before.count(_FENCE) % 2:
        return True
    if not before.lstrip().startswith("{"):
        return False
    try:
        json.JSONDecoder(strict=False).raw_decode(before.lstrip())
    except (ValueError, RecursionError):
        return True  # the tag stands within an object that is not complete before it
    return False
