"""Forges, and webhooks to other systems."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from moothall.config.section import Section

_OWNER_AND_NAME = re.compile(
    r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*"
)


class ForgeSettings(Section):
    """The forge whose issues `moothall watch` answers with pull requests: docs/api.md."""

    kind: Literal["github", "gitea"] = Field(
        "github", description="the REST API of the forge; for Forgejo, use gitea"
    )
    url: str = Field(
        "https://github.com",
        pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
        description="public URL of the forge; http:// only on loopback",
    )
    token: SecretStr | None = Field(
        None,
        description="token of the account that pushes, opens pull requests and comments: in a "
        "file, or in MOOTHALL_FORGE__TOKEN",
    )
    token_file: Path | None = Field(None, description="file that contains `token`")
    repositories: tuple[str, ...] = Field((), description="repositories to watch, as owner/name")
    label: str = Field(
        "moothall",
        description="open issues with this label are worked on; empty: no label is used",
    )
    mention: str = Field(
        "",
        description="a word, such as @moothall: an issue or comment that contains it is worked "
        "on if its author may write to the repository",
    )
    poll_seconds: float = Field(60.0, gt=0, description="how often the forge is polled for changes")
    at_once: int = Field(2, ge=1, le=100, description="issues that are worked on concurrently")
    webhook_host: str = Field("127.0.0.1", description="address to listen on for webhooks")
    webhook_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port for webhooks of the forge, so that changes need not wait for the next "
        "poll; empty: no webhooks",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="secret that the forge signs webhooks with; unsigned webhooks are refused"
    )

    @field_validator("repositories")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if invalid := [name for name in names if not _OWNER_AND_NAME.fullmatch(name)]:
            raise ValueError(f"{invalid[0][:80]!r} must have the form owner/name")
        return names

    @model_validator(mode="after")
    def _check_webhook_secret(self) -> Self:
        if self.webhook_port is not None and self.webhook_secret is None:
            raise ValueError(
                "forge.webhook_secret is missing; set it, because unsigned webhooks are refused"
            )
        return self


class WebhookSettings(Section):
    """The webhook for each decision and each transition of a story: docs/api.md."""

    url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#@\s]+(/[^#@\s]*)?$",
        description="URL that receives the webhooks; http:// only on loopback. Empty: no webhooks",
    )
    secret: SecretStr | None = Field(
        None, description="secret to sign the body with: in a file, or in MOOTHALL_WEBHOOK__SECRET"
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.url is not None and self.secret is None:
            raise ValueError(
                "webhook.secret is missing; set it, so that the receiver can verify the sender"
            )
        return self
