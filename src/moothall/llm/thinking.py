"""Splits a reply into reasoning and answer if the server leaves the reasoning in it. No I/O."""

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
    before a lone closing tag, since some chat templates put the opening one into the prompt. A
    closing tag in a string of a JSON reply or in a code block belongs to the answer.
    """
    if found := _FINAL_CHANNEL.search(text):
        return text[: found.start()], text[found.end() :].partition("<|")[0]
    if opened := _OPENING_TAG.match(text):
        close = f"</{opened[1]}>" if opened[1] else f"[/{opened[2]}]"
        thought, closed, answer = text[opened.end() :].partition(close)
        return thought, answer.lstrip("\n") if closed else ""
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
