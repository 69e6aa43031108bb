"""Attributes of model servers in OpenTelemetry's conventions for generative AI (v1.41)."""

from __future__ import annotations

from urllib.parse import urlsplit

_PROVIDERS = (
    ("-aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".amazonaws.com", "aws.bedrock"),
    (".anthropic.com", "anthropic"),
    (".cohere.ai", "cohere"),
    (".cohere.com", "cohere"),
    (".deepseek.com", "deepseek"),
    (".generativelanguage.googleapis.com", "gcp.gemini"),
    (".groq.com", "groq"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
    (".mistral.ai", "mistral_ai"),
    (".models.ai.azure.com", "azure.ai.inference"),
    (".openai.azure.com", "azure.ai.openai"),
    (".perplexity.ai", "perplexity"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".x.ai", "x_ai"),
)
"""Suffixes of host names, and the conventions' names of their providers."""
_API = "openai"
"""The name for all other servers, such as vLLM, because they speak OpenAI's API."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


def provider_name(base_url: str) -> str:
    """Return `gen_ai.provider.name` for a server."""
    host = f".{urlsplit(base_url).hostname or ''}"
    return next((name for end, name in _PROVIDERS if host.endswith(end)), _API)


def server_attributes(base_url: str) -> dict[str, str | int]:
    """Return the attributes of a server. An empty URL means the local model."""
    address = urlsplit(base_url)
    attributes: dict[str, str | int] = {"gen_ai.provider.name": provider_name(base_url)}
    if address.hostname:
        attributes["server.address"] = address.hostname
        attributes["server.port"] = address.port or _DEFAULT_PORTS.get(address.scheme, 0)
    return attributes
