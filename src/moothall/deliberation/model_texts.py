"""Descriptions of models for users."""

from __future__ import annotations

from moothall.config import LlmSettings
from moothall.config.models import SOURCE, checked_on
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
    priced = llm.with_known_prices()
    if not (priced.price_in or priced.price_out):
        return "no known price, so costs are 0 unless llm.price_in and llm.price_out are set"
    source = (
        "llm.price_in, llm.price_out"
        if priced is llm
        else f"{SOURCE}, {checked_on()}; llm.price_in and price_out override"
    )
    cached = "" if priced.price_cached is None else f" (${priced.price_cached:g} from the cache)"
    return (
        f"${priced.price_in:g} for a million prompt tokens{cached}, ${priced.price_out:g} for a "
        f"million completion tokens ({source})"
    )
