"""Descriptions of models for users."""

from __future__ import annotations

from moothall.config import LlmSettings
from moothall.config.known_models import SOURCE, checked_on, find_model
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


def price_text(llm: LlmSettings) -> str:
    """Describe the prices of a model and their source. `llm` names the model."""
    if llm.price_in or llm.price_out:
        return (
            f"${llm.price_in:g} for a million prompt tokens, ${llm.price_out:g} for a million "
            "completion tokens (llm.price_in, llm.price_out)"
        )
    known = find_model(llm.base_url, llm.model)
    if known is not None:
        return f"{known.price_text} ({SOURCE}, {checked_on()}; llm.price_in and price_out override)"
    return "no known price, so costs are 0 unless llm.price_in and llm.price_out are set"
