"""Parameters by name (`custom_params`): a closed list with checks, so that typing errors are
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from moothall.domain.protocol import DEFAULT_PROTOCOL, PROTOCOLS, ProtocolName
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest

_ApplyParam = Callable[[DeliberationRequest, str], DeliberationRequest]


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):  # noqa: PLR2004 - fits an int32
        raise InvalidRequest(
            f"custom_params {name} is {text[:40]!r}; it is a whole number from 0 up"
        )
    return int(text)


def _set_protocol(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, protocol=request.protocol or text)


def _set_adaptive(request: DeliberationRequest, text: str) -> DeliberationRequest:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"custom_params adaptive is {text[:40]!r}; it is true or false")
    return replace(request, adaptive=request.adaptive or text.lower() == "true")


def _set_max_iterations(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = request.constraints.max_iterations or _parse_number("max_iterations", text)
    return replace(request, constraints=replace(request.constraints, max_iterations=number))


def _set_timeout(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = (
        request.constraints.timeout_seconds
        or request.budget.seconds
        or _parse_number("timeout_seconds", text)
    )
    return replace(request, constraints=replace(request.constraints, timeout_seconds=number))


def _set_num_agents(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, num_agents=request.num_agents or _parse_number("num_agents", text))


def _set_seed(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(
        request, seed=_parse_number("seed", text) if request.seed is None else request.seed
    )


def _set_model(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, model=request.model or text)


COUNCIL_PARAMS: Mapping[str, _ApplyParam] = {
    "protocol": _set_protocol,
    "adaptive": _set_adaptive,
    "max_iterations": _set_max_iterations,
    "timeout_seconds": _set_timeout,
}
"""Parameters that a council may set for all its requests."""

REQUEST_PARAMS: Mapping[str, _ApplyParam] = {
    **COUNCIL_PARAMS,
    "num_agents": _set_num_agents,
    "seed": _set_seed,
    "model_profile": _set_model,
}
"""Parameters that a request may set."""


def check_protocol(name: str) -> ProtocolName:
    """Return the protocol, the default one for an empty name. Raises `InvalidRequest`."""
    chosen = name.strip().lower() or DEFAULT_PROTOCOL
    for protocol in PROTOCOLS:
        if protocol == chosen:
            return protocol
    matches = get_close_matches(chosen, PROTOCOLS, 1)
    hint = f"; did you mean {matches[0]}?" if matches else ""
    raise InvalidRequest(f"unknown protocol {name[:40]!r}; there are {', '.join(PROTOCOLS)}{hint}")


def apply_params(
    request: DeliberationRequest, params: Mapping[str, str], known_params: Mapping[str, _ApplyParam]
) -> DeliberationRequest:
    """Return the request with `params` in its unset fields. Raises `InvalidRequest` for bad
    ones.
    """
    for name, text in sorted(params.items()):
        apply = known_params.get(name)
        if apply is None:
            matches = get_close_matches(name, known_params, 1)
            hint = f"; did you mean {matches[0]}?" if matches else ""
            raise InvalidRequest(
                f"unknown custom_params {name[:40]!r}; there are {', '.join(known_params)}{hint}"
            )
        request = apply(request, text.strip())
    return request
