"""Descriptions of models for users."""

from __future__ import annotations

from moothall.config import LlmSettings
from moothall.domain.chat import ModelDescription, ReplyMode


def describe_reply(mode: ReplyMode) -> str:
    """Describe how a model calls tools."""
    return {"tools": "native tool calls", "json": "replies as json", "blocks": "replies as blocks"}[
        mode
    ]


def window_text(llm: LlmSettings, about: ModelDescription) -> str:
    """Describe the window and the longest reply of a model, and their source."""
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
