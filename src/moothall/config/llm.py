"""Model servers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from moothall.config.known_models import find_model
from moothall.config.section import Section

Role = Literal["dev", "qa", "architect", "devops", "data", "po"]


UNKNOWN_WINDOW = 8192
"""The window in tokens of the local model, and of a model if neither its server nor a setting names
its window.
"""


NATIVE_WINDOW = 131_072
"""The same for a model that calls tools natively. Such models have large windows. If the window is
smaller, a refusal of the server corrects it.
"""


LOCAL_REPLY, LONGEST_REPLY = 1024, 32_768


class LlmSettings(Section):
    """The model server. Without a base URL, the small local model runs on this machine's CPU.
    `models.NAME` adds a model; unset fields are inherited from `llm`.
    """

    base_url: str | None = Field(
        None, description="root of an OpenAI-compatible API, e.g. http://127.0.0.1:8000/v1"
    )
    replicas: tuple[str, ...] = Field(
        (),
        description="further servers of the same model; each deliberation uses one of them, and "
        "the others replace it if it fails",
    )
    model: str = Field("", description="model name; empty: the first model that the server lists")
    provider: str = Field(
        "",
        description="provider name in the usage of the agent service; empty: openai-compatible, "
        "or llama.cpp",
    )
    tier: Literal["", "small", "medium", "large"] = Field(
        "", description="requests for this tier get the first model that has it"
    )
    fallback: tuple[str, ...] = Field(
        (), description="models that are used while this one is unreachable, in order"
    )
    harness: tuple[str, ...] = Field(
        (),
        description="command of another agent that works on the seats of this model: one that "
        "speaks the Agent Client Protocol, or one with {prompt} in an argument; empty: our own",
    )
    harness_env: dict[str, str] = Field(
        {},
        description="environment variables of the harness; {port} is replaced by the port of its "
        "model server",
    )
    roles: tuple[Role, ...] = Field(
        (), description="only for models.NAME: roles whose seats use this model by default"
    )
    api_key: SecretStr | None = Field(
        None, description="key of the model server, sent as a bearer token"
    )
    model_path: Path | None = Field(None, description="a GGUF file of your own for the local model")
    models_dir: Path | None = Field(
        None,
        description="folder of the fetched local model, for all data directories; empty: the "
        "user's cache folder",
    )
    reply: Literal["auto", "tools", "json", "blocks"] = Field(
        "auto",
        description="how the model calls tools: natively, in a JSON object, or in tagged blocks; "
        "auto: the first that works in a probe",
    )
    api: Literal["auto", "chat", "responses"] = Field(
        "auto",
        description="/v1/chat/completions or /v1/responses; auto: chat, until the server refuses "
        "a request that needs responses",
    )
    reasoning_effort: str = Field(
        "",
        max_length=32,
        description="how long the model reasons (none, minimal, low, medium, high, xhigh); "
        "empty: the server's default",
    )
    reasoning_tokens: int = Field(
        0,
        ge=0,
        description="added to the limit of every reply, because servers count reasoning tokens "
        "in it",
    )
    approaches: Literal["auto", "on", "off"] = Field(
        "auto",
        description="ask the model for distinct approaches first; auto: except for the local "
        "model, which they mislead",
    )
    functions: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if a task names one function, ask only for it, without tools; auto: for the "
        "local model, which handles tools badly",
    )
    seats_in_turn: Literal["auto", "on", "off"] = Field(
        "auto",
        description="fill the seats of a council one after the other until an answer is proven; "
        "auto: for the local model, which is not faster with several at once",
    )
    cache_salt: Literal["auto", "on", "off"] = Field(
        "auto", description="separate the prompt caches of tenants; auto: on vLLM"
    )
    price_in: float = Field(
        0.0,
        ge=0,
        description="US dollars per million prompt tokens; if this and price_out are 0: the prices "
        "of the table of known models, if it has the model",
    )
    price_out: float = Field(0.0, ge=0, description="US dollars per million completion tokens")
    price_cached: float | None = Field(
        None,
        ge=0,
        description="US dollars per million prompt tokens from the server's cache; empty: price_in",
    )
    price_reasoning: float | None = Field(
        None,
        ge=0,
        description="US dollars per million completion tokens of reasoning; empty: price_out",
    )
    temperature: float = Field(
        0.8,
        ge=0,
        le=2,
        description="sampling temperature; the seats of a council get 0.25 to 1.25 times as much",
    )
    max_tokens: int = Field(
        0,
        ge=0,
        description="completion tokens of a call; 0: a quarter of the window, at most 32,768; "
        "for the local model 1,024",
    )
    function_turns: int = Field(
        1,
        ge=1,
        description="replies of an attempt at one function; further attempts rewrite the "
        "function instead of repairing it",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        description="window of the model, to which history is condensed; 0: as the server "
        "reports, else 8,192; for the local model 8,192",
    )
    concurrency: int = Field(
        256, ge=1, description="concurrent calls to one server, which queues what it cannot start"
    )
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits for a model server that does not answer yet",
    )
    call_seconds: float = Field(
        1800.0,
        gt=0,
        description="maximum duration of one call without retries; reasoning models take minutes",
    )
    idle_seconds: float = Field(
        300.0,
        gt=0,
        description="maximum silence on an open stream; some servers send nothing while the "
        "model reasons",
    )
    retries: int = Field(
        8,
        ge=0,
        description="with growing delays about a minute, enough for a restart of the model server",
    )

    @field_validator("max_tokens", "context_tokens")
    @classmethod
    def _check_tokens(cls, value: int, info: ValidationInfo) -> int:
        minimum = 16 if info.field_name == "max_tokens" else 1024
        if 0 < value < minimum:
            raise ValueError(f"must be 0 (automatic) or at least {minimum}")
        return value

    def with_known_prices(self) -> Self:
        """Return the settings with the prices of the table of known models. Return them unchanged
        if they contain a price or the model is unknown.
        """
        known = None if self.price_in or self.price_out else find_model(self.base_url, self.model)
        if known is None:
            return self
        cached = known.price_cached if self.price_cached is None else self.price_cached
        return self.model_copy(
            update={
                "price_in": known.price_in,
                "price_cached": cached,
                "price_out": known.price_out,
            }
        )

    @property
    def assumed_window(self) -> int:
        """The window to use before the server has been asked for it."""
        return self.context_tokens or UNKNOWN_WINDOW

    def fitted(self, window: int, most_tokens: int = 0) -> Self:
        """Return the settings with a window and a reply length. A setting takes precedence over
        `window`, the window that the server reports, 0 if none. `most_tokens` is the longest reply
        that the server accepts, 0 if unlimited.
        """
        window = self.context_tokens or window or UNKNOWN_WINDOW
        quarter = min(max(window // 4, 256), LONGEST_REPLY)
        tokens = self.max_tokens or (LOCAL_REPLY if self.base_url is None else quarter)
        update = {
            "context_tokens": window,
            "max_tokens": min(tokens, most_tokens) if most_tokens else tokens,
        }
        return self.model_copy(update=update)
