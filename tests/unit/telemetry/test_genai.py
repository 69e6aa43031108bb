from __future__ import annotations

import pytest

from moothall.telemetry.metrics import GENAI_SECONDS, GENAI_TOKENS, provider_name, server_attributes


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gcp.gemini"),
        ("https://us-central1-aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", "aws.bedrock"),
        ("https://acme.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("https://api.mistral.ai/v1", "mistral_ai"),
        ("https://api.x.ai/v1", "x_ai"),
        ("https://api.notx.ai/v1", "openai"),
        ("http://127.0.0.1:8000/v1", "openai"),
        ("https://api.mistral.ai.example.org/v1", "openai"),
        ("", "openai"),
    ],
)
def test_the_provider_follows_from_the_host_name(url: str, provider: str) -> None:
    assert provider_name(url) == provider


def test_a_server_is_described_by_its_address_and_port() -> None:
    assert server_attributes("http://gpu-1:8000/v1") == {
        "gen_ai.provider.name": "openai",
        "server.address": "gpu-1",
        "server.port": 8000,
    }
    assert server_attributes("https://api.mistral.ai/v1")["server.port"] == 443
    assert server_attributes("") == {"gen_ai.provider.name": "openai"}


def test_buckets_follow_the_semantic_conventions() -> None:
    assert GENAI_TOKENS.buckets[:4] == (1, 4, 16, 64)
    assert (len(GENAI_TOKENS.buckets), GENAI_TOKENS.buckets[-1]) == (14, 67_108_864)
    assert " ".join(map(str, GENAI_SECONDS.buckets)) == (
        "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92"
    )
