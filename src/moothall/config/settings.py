"""The settings without those of tool families, and the code that reads settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from moothall.config.file import (
    Section,
    describe_unknown,
    describe_unknown_key,
    location_of,
    read_toml,
    secret_fields,
)
from moothall.config.limits import (
    EvidenceSettings,
    GuardSettings,
    LimitSettings,
    QuotaSettings,
    ToolSettings,
)
from moothall.config.models import LlmSettings, Models
from moothall.config.services import (
    AgentSettings,
    BusSettings,
    ForgeSettings,
    GraphSettings,
    GrpcSettings,
    LogSettings,
    MetricsSettings,
    OidcSettings,
    RaySettings,
    ServeSettings,
    TraceSettings,
    TrackerSettings,
    WebhookSettings,
    WebSettings,
)
from moothall.config.workspace import WorkspaceSections
from moothall.errors import ConfigurationError, wrong_fields

_PREFIX = "MOOTHALL_"


class Secrets(Section):
    """The operator's secret values, which are removed from prompts, events, logs, diffs and all
    other recorded data.
    """

    variables: tuple[str, ...] = Field(
        (),
        description="environment variables whose values are secrets; unset ones are ignored",
    )
    values: SecretStr | None = Field(None, description="further secrets, one per line")

    @model_validator(mode="after")
    def _read_variables(self) -> Self:
        """Read the variables here, so that remote hosts get their values too."""
        from_variables = [os.environ[name] for name in self.variables if os.environ.get(name)]
        values = [self.values.get_secret_value()] if self.values else []
        if from_variables:
            object.__setattr__(  # the model is frozen
                self, "values", SecretStr("\n".join((*values, *from_variables)))
            )
        return self


class Settings(WorkspaceSections, BaseSettings):
    """All settings except those of tool families, which `moothall.settings` adds. They are frozen,
    read once and passed on.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    repository: str = Field("", description="default repository of deliberations that name none")
    seats: Literal["configured", "auto"] = Field(
        "configured",
        description="models of the seats of requests that name none; configured: that of the role; "
        "auto: the two that complement each other best, by their results so far: docs/models.md",
    )
    llm: LlmSettings = Field(default_factory=LlmSettings)
    models: Mapping[str, LlmSettings] = Field(
        {},
        description="further models by name; unset fields are inherited from llm: docs/models.md",
    )
    bus: BusSettings = Field(default_factory=BusSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    evidence: EvidenceSettings = Field(default_factory=EvidenceSettings)
    secrets: Secrets = Field(default_factory=Secrets)
    guard: GuardSettings = Field(default_factory=GuardSettings)
    agents: AgentSettings = Field(default_factory=AgentSettings)
    tools: ToolSettings = Field(default_factory=ToolSettings)
    serve: ServeSettings = Field(default_factory=ServeSettings)
    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    forge: ForgeSettings = Field(default_factory=ForgeSettings)
    trackers: TrackerSettings = Field(default_factory=TrackerSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    graph: GraphSettings = Field(default_factory=GraphSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    trace: TraceSettings = Field(default_factory=TraceSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    quotas: QuotaSettings = Field(default_factory=QuotaSettings)

    @model_validator(mode="after")
    def _complete_models(self) -> Self:
        """Complete each model with the fields of `llm`."""
        object.__setattr__(  # the model is frozen
            self, "models", Models.of(self.llm, self.models).named
        )
        return self

    @property
    def choice(self) -> Models:
        """The default model and the named models."""
        return Models(self.llm, self.models)

    @model_validator(mode="after")
    def _check_workspaces(self) -> Self:
        """Jobs need images, and a bus that their pods can reach; workspaces on Ray a cluster."""
        if self.workspace.kind == "ray" and self.ray.address is None:
            raise ValueError(
                "workspace.kind is ray, so ray.address must be set: workspaces are spread over the "
                "nodes of a cluster; for one machine use workspace.kind local"
            )
        if self.workspace.kind == "kubernetes":
            required = {
                "jobs.image": self.jobs.image,
                "jobs.link_image": self.jobs.link_image,
                "bus.url": self.bus.url,
            }
            if missing := [name for name, value in required.items() if not value]:
                raise ValueError(
                    f"workspace.kind is kubernetes, so {', '.join(missing)} must be set"
                )
        return self


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Return all secrets of the settings, including passwords in secret URLs. They must not appear
    in any output.
    """
    secrets: list[str] = []
    for name in type(settings).model_fields:
        field_value = getattr(settings, name)
        values = field_value.values() if isinstance(field_value, Mapping) else (field_value,)
        for value in values:
            if isinstance(value, BaseModel):
                secrets += secret_values(value)
            elif isinstance(value, SecretStr):
                secrets += _secret_forms(value.get_secret_value())
    return tuple(secrets)


def _secret_forms(secret: str) -> Iterator[str]:
    """Yield a secret and its parts that are secret too: its lines, and the password of a URL."""
    yield secret
    if "\n" in secret:
        yield from (
            line.strip()
            for line in secret.splitlines()
            if line.strip() and not line.startswith("-----")
        )
    _, separator, location = secret.partition("://")
    user_info, at, _ = location.rpartition("@")
    if separator and at:
        password = user_info.partition(":")[2]
        yield from dict.fromkeys(form for form in (password, unquote(password)) if form)


def _describe_errors(
    kind: type[Settings], error: ValidationError, config: Path | None, from_file: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the location and the fault of each invalid setting."""
    for item in wrong_fields(error):
        keys = list(map(str, item.place))
        is_unknown = item.fault == "extra_forbidden"
        location = location_of(config, from_file, keys) if config else ""
        fault = f" {describe_unknown_key(kind, keys)}" if is_unknown else f": {item.sentence}"
        yield f"{location}{'.'.join(keys)}{fault}"


def read_settings(kind: type[Settings], config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings as an instance of `kind`. Raises `ConfigurationError`, which
    names each invalid setting.
    """
    if messages := describe_wrong_variables(kind, os.environ):
        raise ConfigurationError("; ".join(messages))
    from_file = read_toml(config) if config else {}

    class Loaded(kind):  # type: ignore[misc, valid-type]  # the base class is a parameter
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *sources: PydanticBaseSettingsSource,
            **named: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del sources
            return (
                named["init_settings"],
                named["env_settings"],
                InitSettingsSource(settings_cls, from_file),
            )

    try:
        loaded = Loaded(**overrides)
    except ValidationError as error:
        raise ConfigurationError(
            f"settings are invalid: {'; '.join(_describe_errors(kind, error, config, from_file))}"
        ) from error
    except (OSError, SettingsError) as error:
        raise ConfigurationError(f"settings cannot be read: {error}") from error
    return kind.model_construct(**{name: getattr(loaded, name) for name in kind.model_fields})


# Kubernetes sets these variables in all containers of a namespace with a service moothall-*.
_KUBERNETES_VARIABLE = re.compile(
    r"MOOTHALL_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d+_(?:TCP|UDP)(?:_[A-Z]+)?)?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*|[0-9a-fA-F.:]+|tcp|udp")


def known_variables(settings: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the name of each environment variable that is a setting or a complete section as
    JSON.
    """
    for name, field in settings.model_fields.items():
        variable = f"{prefix}{name}".upper()
        yield variable
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_variables(field.annotation, f"{variable}__")
    yield from (f"{prefix}{name}_file".upper() for name in secret_fields(settings))


def describe_wrong_variables(
    settings: type[BaseModel], environment: Mapping[str, str]
) -> list[str]:
    """Return a message for each variable with Moothall's prefix that is not a setting."""
    known_names = list(known_variables(settings, ""))
    messages = []
    for variable, value in sorted(environment.items()):
        prefix, name = variable.upper()[: len(_PREFIX)], variable.upper()[len(_PREFIX) :]
        if (
            prefix != _PREFIX
            or name in known_names
            or _is_kubernetes_variable(prefix + name, value)
        ):
            continue
        messages.append(f"{variable[:100]} {_describe_unknown_variable(name, known_names)}")
    return messages


def _describe_unknown_variable(name: str, known_names: Sequence[str]) -> str:
    """Return the error message for a variable, both without the prefix. A name in a section that
    exists is compared with the other names of the section only.
    """
    keys = name.lower().split("__")
    section, separator, word = name.rpartition("__")
    siblings = [
        key
        for path, _, key in (known_name.rpartition("__") for known_name in known_names)
        if path == section
    ]
    if separator and siblings:
        return describe_unknown(keys, word, siblings, f"{_PREFIX}{section}__")
    return describe_unknown(keys, name, known_names, _PREFIX)


def _is_kubernetes_variable(name: str, value: str) -> bool:
    return (
        _KUBERNETES_VARIABLE.fullmatch(name) is not None
        and _ADDRESS.fullmatch(value) is not None
        and not _is_mistyped_port(name, value)
    )


def _is_mistyped_port(name: str, value: str) -> bool:
    """`MOOTHALL_GRPC_PORT=50055` is a mistyped setting. The value of Kubernetes would be an address
    with a scheme.
    """
    return (
        name.endswith("_PORT")
        and not name.endswith("_SERVICE_PORT")
        and "://" not in value
        and "_TCP" not in name
        and "_UDP" not in name
    )
