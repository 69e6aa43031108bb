"""Environment variables that look like settings and are none: a mistyped one would be silently without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from pydantic import BaseModel

# A Kubernetes service called moothall-something puts these into every container beside it.
_OF_KUBERNETES = re.compile(
    r"MOOTHALL_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d+_(?:TCP|UDP)(?:_[A-Z]+)?)?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*|[0-9a-fA-F.:]+|tcp|udp")


def known_variables(settings: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the name of every variable that sets something; a whole section may be given as JSON."""
    for name, field in settings.model_fields.items():
        variable = f"{prefix}{name}".upper()
        yield variable
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_variables(field.annotation, f"{variable}__")


def wrong_variables(settings: type[BaseModel], prefix: str, environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that begins with `prefix` and sets nothing."""
    known = list(known_variables(settings, prefix))
    wrong = []
    for variable, value in sorted(environment.items()):
        name = variable.upper()
        if not name.startswith(prefix) or name in known or _foreign(name, value):
            continue
        near = get_close_matches(name.removeprefix(prefix), [known_name.removeprefix(prefix) for known_name in known], n=1)
        hint = f"did you mean {prefix}{near[0]}?" if near else "`moothall config` lists all"
        wrong.append(f"{variable[:100]} is no setting; {hint}")
    return wrong


def _foreign(name: str, value: str) -> bool:
    return _OF_KUBERNETES.fullmatch(name) is not None and _ADDRESS.fullmatch(value) is not None and not _looks_ours(name, value)


def _looks_ours(name: str, value: str) -> bool:
    """`MOOTHALL_GRPC_PORT=50055` is a mistyped setting of ours; Kubernetes writes an address with a scheme there."""
    return (
        name.endswith("_PORT")
        and not name.endswith("_SERVICE_PORT")
        and "://" not in value
        and "_TCP" not in name
        and "_UDP" not in name
    )
