"""What is said of a model to people."""

from __future__ import annotations

from moothall.config import LlmSettings
from moothall.domain.chat import ModelDescription, ReplyMode


def describe_reply(mode: ReplyMode) -> str:
    """Return how a model calls tools, in words for people."""
    return {"tools": "native tool calls", "json": "replies as json", "blocks": "replies as blocks"}[
        mode
    ]


def window_text(llm: LlmSettings, about: ModelDescription) -> str:
    """Return the window and the longest reply of a model, and where they come from, in words for
    people.
    """
    fitted = llm.fitted(about.window, about.most_tokens)
    if llm.context_tokens:
        source = "llm.context_tokens"
    elif about.window:
        source = about.source
    else:
        source = "assumed, the server does not tell it: set MOOTHALL_LLM__CONTEXT_TOKENS"
    return (
        f"window of {fitted.context_tokens:,} tokens ({source}); replies of up to "
        f"{fitted.max_tokens:,} tokens"
    )
