"""The settings of the server itself, and where settings come from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from moothall.config.agents import (
    REMOVED_LIMITS,
    AgentSettings,
    EvidenceSettings,
    GuardSettings,
    LimitSettings,
    ToolSettings,
    WorkspaceSections,
)
from moothall.config.file import place_of, read_toml, unknown
from moothall.config.models import Models
from moothall.config.parts import (
    BusSettings,
    ForgeSettings,
    GraphSettings,
    GrpcSettings,
    LlmSettings,
    LogSettings,
    MetricsSettings,
    OidcSettings,
    RaySettings,
    ServeSettings,
    TraceSettings,
    WebhookSettings,
    WebSettings,
)
from moothall.config.section import Section
from moothall.errors import ConfigurationError, wrong_fields

_PREFIX = "MOOTHALL_"


class Secrets(Section):
    """The operator's own values that are taken out of prompts, events, logs, diffs and all else
    that is recorded.
    """

    variables: tuple[str, ...] = Field(
        (),
        description="environment variables whose values are secrets wherever they stand; those "
        "that are not set are left out",
    )
    values: SecretStr | None = Field(
        None, description="more of them, one a line; those of the variables are added"
    )
    values_file: Path | None = None

    @model_validator(mode="after")
    def _read_variables(self) -> Self:
        """Read the variables here, so that hosts elsewhere know their values too."""
        found = [os.environ[name] for name in self.variables if os.environ.get(name)]
        own = [self.values.get_secret_value()] if self.values else []
        if found:
            object.__setattr__(
                self, "values", SecretStr("\n".join((*own, *found)))
            )  # frozen from now on
        return self


class Settings(WorkspaceSections, BaseSettings):
    """All of it but the sections of the families of tools, which `moothall.settings` adds. Frozen;
    made once and handed down.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    repository: str = Field("", description="default repository of a deliberation that names none")
    seed: int = Field(0, ge=0, description="base of all sampling seeds")
    llm: LlmSettings = LlmSettings()
    models: Mapping[str, LlmSettings] = Field(
        {}, description="further models by name, each as llm but for what it says: docs/models.md"
    )
    bus: BusSettings = BusSettings()
    ray: RaySettings = RaySettings()
    limits: LimitSettings = LimitSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    secrets: Secrets = Secrets()
    guard: GuardSettings = GuardSettings()
    agents: AgentSettings = AgentSettings()
    tools: ToolSettings = ToolSettings()
    serve: ServeSettings = ServeSettings()
    grpc: GrpcSettings = GrpcSettings()
    web: WebSettings = WebSettings()
    oidc: OidcSettings = OidcSettings()
    forge: ForgeSettings = ForgeSettings()
    webhook: WebhookSettings = WebhookSettings()
    graph: GraphSettings = GraphSettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _models_are_whole(self) -> Self:
        """Each says what `llm` says, but for its own words."""
        object.__setattr__(
            self, "models", Models.of(self.llm, self.models).named
        )  # frozen from now on
        return self

    @property
    def choice(self) -> Models:
        """The default model and the others."""
        return Models(self.llm, self.models)

    @model_validator(mode="after")
    def _jobs_are_whole(self) -> Self:
        """A workspace elsewhere needs an image, and a bus that its pod reaches."""
        if self.workspace.kind == "kubernetes":
            wanted = {
                "jobs.image": self.jobs.image,
                "jobs.link_image": self.jobs.link_image,
                "bus.url": self.bus.url,
            }
            if missing := [name for name, value in wanted.items() if not value]:
                raise ValueError(
                    f"workspace.kind is kubernetes, so {', '.join(missing)} must be set"
                )
        return self


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Return the operator's own secrets: nothing that leaves may carry them. Of a URL its password
    is one, too.
    """
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for one in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(one, BaseModel):
                found += secret_values(one)
            elif isinstance(one, SecretStr):
                found += _forms(one.get_secret_value())
    return tuple(found)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    if "\n" in secret:
        yield from (
            line.strip()
            for line in secret.splitlines()
            if line.strip() and not line.startswith("-----")
        )
    _, mark, rest = secret.partition("://")
    place, at, _ = rest.rpartition("@")
    if mark and at:
        password = place.partition(":")[2]
        yield from dict.fromkeys(form for form in (password, unquote(password)) if form)


def _wrong(
    kind: type[Settings], error: ValidationError, config: Path | None, from_file: Mapping[str, Any]
) -> Iterator[str]:
    """Say of each wrong setting where it stands, and what is wrong."""
    for item in wrong_fields(error):
        keys = list(map(str, item.place))
        said = unknown(kind, keys) if item.fault == "extra_forbidden" else item.sentence
        colon = "" if item.fault == "extra_forbidden" else ":"
        yield f"{place_of(config, from_file, keys) if config else ''}{'.'.join(keys)}{colon} {said}"


def read_settings(kind: type[Settings], config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings, a `kind`; raises `ConfigurationError` naming each wrong
    one.
    """
    if wrong_names := wrong_variables(kind, os.environ):
        raise ConfigurationError("; ".join(wrong_names))
    from_file = read_toml(config) if config else {}

    class Loaded(kind):  # type: ignore[misc, valid-type]  # a class that is handed in
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
            f"settings are wrong: {'; '.join(_wrong(kind, error, config, from_file))}"
        ) from error
    except (OSError, SettingsError) as error:
        raise ConfigurationError(f"settings cannot be read: {error}") from error
    return kind.model_construct(**{name: getattr(loaded, name) for name in kind.model_fields})


# A Kubernetes service called moothall-something puts these into every container beside it.
_OF_KUBERNETES = re.compile(
    r"MOOTHALL_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d+_(?:TCP|UDP)(?:_[A-Z]+)?)?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*|[0-9a-fA-F.:]+|tcp|udp")


def known_variables(settings: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the name of every variable that sets something; a whole section may be given as
    JSON.
    """
    for name, field in settings.model_fields.items():
        variable = f"{prefix}{name}".upper()
        yield variable
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_variables(field.annotation, f"{variable}__")


_REMOVED = frozenset(f"{_PREFIX}LIMITS__{name.upper()}" for name in REMOVED_LIMITS)


def wrong_variables(settings: type[BaseModel], environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that looks like ours and sets nothing."""
    known = list(known_variables(settings, _PREFIX))
    wrong = []
    for variable, value in sorted(environment.items()):
        name = variable.upper()
        if (
            not name.startswith(_PREFIX)
            or name in known
            or name in _REMOVED
            or _foreign(name, value)
        ):
            continue
        near = get_close_matches(
            name.removeprefix(_PREFIX),
            [known_name.removeprefix(_PREFIX) for known_name in known],
            n=1,
        )
        hint = f"did you mean {_PREFIX}{near[0]}?" if near else "`moothall config` lists all"
        wrong.append(f"{variable[:100]} is no setting; {hint}")
    return wrong


def _foreign(name: str, value: str) -> bool:
    return (
        _OF_KUBERNETES.fullmatch(name) is not None
        and _ADDRESS.fullmatch(value) is not None
        and not _looks_ours(name, value)
    )


def _looks_ours(name: str, value: str) -> bool:
    """`MOOTHALL_GRPC_PORT=50055` is a mistyped setting of ours; Kubernetes writes an address with a
    scheme there.
    """
    return (
        name.endswith("_PORT")
        and not name.endswith("_SERVICE_PORT")
        and "://" not in value
        and "_TCP" not in name
        and "_UDP" not in name
    )
