from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.text import brings_secret, is_masked, may_hold_secrets, scrub, scrub_all

LETTERS = "aB3dE5gH7jK9" * 30
SECRETS = [
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + LETTERS[:36],
    "github_pat_" + LETTERS[:60],
    "glpat-" + LETTERS[:20],
    "xoxb-" + "123456789012-" + LETTERS[:24],
    "sk-" + LETTERS[:48],
    "sk-proj-" + LETTERS[:48],
    "sk-ant-api03-" + LETTERS[:80],
    "sk_live_" + LETTERS[:24],
    "AIza" + LETTERS[:35],
    "ya29." + LETTERS[:60],
    "hf_" + LETTERS[:34],
    "npm_" + LETTERS[:36],
    "pypi-" + LETTERS[:100],
    "SG." + LETTERS[:22] + "." + LETTERS[:43],
    "eyJ" + LETTERS[:30] + ".eyJ" + LETTERS[:60] + "." + LETTERS[:43],
    "-----BEGIN RSA PRIVATE KEY-----\n" + LETTERS + "\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + LETTERS + "\n-----END PRIVATE KEY-----",
]
around = st.text(st.sampled_from(list(" \n\"'=:,(){}+-")), max_size=6)


@pytest.mark.parametrize("secret", SECRETS)
def test_known_secret_formats_are_found(secret: str) -> None:
    assert scrub(f'key = "{secret}"\nnext') == 'key = "[redacted]"\nnext'


@given(around, st.sampled_from(SECRETS), around, st.sampled_from(SECRETS))
def test_no_part_of_a_secret_remains(
    prefix: str, secret: str, between: str, other_secret: str
) -> None:
    clean = scrub(f"{prefix} {secret} {between} {other_secret}")
    assert secret not in clean
    assert other_secret not in clean
    assert scrub(clean) == clean


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:s3cret@host/x", "https://me:redacted@host/x"),
        (
            "git clone https://oauth2:abc@git.example.org/a.git",
            "git clone https://oauth2:redacted@git.example.org/a.git",
        ),
        ("Authorization: Bearer abcdefghijkl.mnop", "Authorization: Bearer [redacted]"),
        ("my own-value-1 here", "my [redacted] here"),
    ],
)
def test_credentials_are_found_in_context(text: str, expected: str) -> None:
    assert scrub(text, ["own-value-1"]) == expected


@pytest.mark.parametrize(
    "text",
    [
        hashlib.sha256(b"x").hexdigest(),
        "def risk_live_test(): return task-manager",
        "https://host:8080/path?x=a@b",
        "http://127.0.0.1:8000/v1",
        "a disk-usage-of-everything-that-is-on-this-machine",
        "eyJhbGciOi is how it begins",
        "",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert scrub(text) == text


def test_short_configured_values_are_not_redacted() -> None:
    assert scrub("the theme", ["the", ""]) == "the theme"


def test_the_longer_value_is_redacted_first() -> None:
    assert scrub("secret-value-and-more", ["secret-value", "secret-value-and-more"]) == "[redacted]"


@given(
    st.text(max_size=300),
    st.lists(st.text(st.characters(categories=["L", "N"]), min_size=6, max_size=12), max_size=3),
)
def test_scrubbing_is_idempotent(text: str, values: list[str]) -> None:
    values = [value for value in values if value not in "redacted"]
    scrubbed = scrub(text, values)
    assert scrub(scrubbed, values) == scrubbed


def test_nested_data_is_scrubbed() -> None:
    secret = SECRETS[1]
    assert scrub_all({secret: [1, None, {"x": (f"a {secret}",)}]}) == {
        "[redacted]": [1, None, {"x": ["a [redacted]"]}]
    }


def test_a_key_after_many_beginnings_is_found_in_linear_time() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----"
    repeated = begin * 200_000
    assert scrub(f"{repeated}{begin}QUJD\n{end}.") == f"{repeated}[redacted]."
    assert "QUJD" not in scrub(f"-{begin}-QUJD\n-{end}")


@given(
    around,
    st.sampled_from(SECRETS),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=12),
    st.integers(0, 1),
)
def test_the_quick_check_misses_no_secret(
    prefix: str, secret: str, configured_secret: str, count: int
) -> None:
    values = (configured_secret,) * count
    for data in (
        {"a": [prefix + secret]},
        {secret: 1},
        {"a": prefix + configured_secret},
        {"url": f"https://me:{configured_secret}@host"},
        {"a": prefix},
    ):
        raw = json.dumps(data, ensure_ascii=False)
        assert may_hold_secrets(raw, values) or scrub_all(data, values) == data


TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("diff", "has_secret"),
    [
        (f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+KEY = '{TOKEN}'\n", True),
        (f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n+++ {TOKEN}\n", True),
        (f"--- a/x\n+++ b/{TOKEN}\n@@ -1 +1 @@\n+a\n", True),
        ("+-----BEGIN RSA PRIVATE KEY-----\n+abc\n+-----END RSA PRIVATE KEY-----\n", True),
        ("+password = 'own-value-1'\n", True),
        (f"@@ -1,2 +1,2 @@\n KEY = '{TOKEN}'\n-a\n+b\n", False),
        (f"@@ -1,2 +1,2 @@\n-KEY = '{TOKEN}'\n+KEY = os.environ['KEY']\n", False),
        (f"@@ -1 +9 @@\n-KEY = '{TOKEN}'\n+  KEY = '{TOKEN}'\n", False),
        ("+URL = 'postgres://user:password@localhost/test'\n", False),
        ("+headers = {'Authorization': 'Bearer abcdefghijklmnop'}\n", False),
    ],
)
def test_secrets_added_by_a_diff_are_found(diff: str, has_secret: bool) -> None:  # noqa: FBT001 - of a table
    assert brings_secret(diff, lambda text: scrub(text, ("own-value-1",))) is has_secret


def test_a_diff_with_a_masked_line_is_recognised() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+URL = 'https://ann:pass@example.org/'\n"
    assert not is_masked(diff)
    assert is_masked(scrub(diff))
    assert not is_masked(scrub(diff).replace("+URL", " URL")), "context lines do not apply"
