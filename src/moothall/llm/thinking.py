"""Split a reply into reasoning and answer if the server left the reasoning in the text. No I/O."""

from __future__ import annotations

import json
import re

_OPENING_TAG = re.compile(r"\s*(?:<(think|thinking|thought|seed:think)>|\[(THINK)\])")
_CLOSING_TAG = re.compile(r"</(?:think|thinking|seed:think)>|\[/THINK\]")
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final(?:\s*<\|constrain\|>\w+)?<\|message\|>")
_ANSWER_TAG = re.compile(r"<(?:tool|python|finish|tool_call|function)\b[^>]*>")
_FENCE = "```"


def split_thinking(text: str) -> tuple[str, str]:
    """Return reasoning and answer. The reasoning is between tags at the beginning, or everything
    before a lone closing tag, because some chat templates put the opening tag into the prompt. A
    closing tag in a string of a JSON reply or in a code block belongs to the answer.
    """
    if final := _FINAL_CHANNEL.search(text):
        return text[: final.start()], text[final.end() :].partition("<|")[0]
    if opening := _OPENING_TAG.match(text):
        closing = f"</{opening[1]}>" if opening[1] else f"[/{opening[2]}]"
        reasoning, closed, answer = text[opening.end() :].partition(closing)
        return reasoning, answer.lstrip("\n") if closed else ""
    closed_tag = _CLOSING_TAG.search(text)
    if closed_tag is None or _is_answer(text[: closed_tag.start()]):
        return "", text
    return text[: closed_tag.start()], text[closed_tag.end() :].lstrip("\n")


def _is_answer(before: str) -> bool:
    """Return whether the text before a lone closing tag is part of the answer."""
    if _ANSWER_TAG.search(before) or before.count(_FENCE) % 2:
        return True
    if not before.lstrip().startswith("{"):
        return False
    try:
        json.JSONDecoder(strict=False).raw_decode(before.lstrip())
    except (ValueError, RecursionError):
        return True  # the tag is inside an object that is not complete before it
    return False
