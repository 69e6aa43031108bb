"""Parameters by name (`custom_params`): a closed list, each checked, so that a typing error is no
silent default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from moothall.domain.protocol import DEFAULT_PROTOCOL, PROTOCOLS, ProtocolName
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest

_Apply = Callable[[DeliberationRequest, str], DeliberationRequest]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):  # noqa: PLR2004 - fits an int32
        raise InvalidRequest(
            f"custom_params {name} is {text[:40]!r}; it is a whole number from 0 up"
        )
    return int(text)


def _protocol(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, protocol=request.protocol or text)


def _adaptive(request: DeliberationRequest, text: str) -> DeliberationRequest:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"custom_params adaptive is {text[:40]!r}; it is true or false")
    return replace(request, adaptive=request.adaptive or text.lower() == "true")


def _turns(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = request.constraints.max_iterations or _number("max_iterations", text)
    return replace(request, constraints=replace(request.constraints, max_iterations=number))


def _seconds(request: DeliberationRequest, text: str) -> DeliberationRequest:
    number = (
        request.constraints.timeout_seconds
        or request.budget.seconds
        or _number("timeout_seconds", text)
    )
    return replace(request, constraints=replace(request.constraints, timeout_seconds=number))


def _agents(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, num_agents=request.num_agents or _number("num_agents", text))


def _with_seed(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, seed=_number("seed", text) if request.seed is None else request.seed)


def _model(request: DeliberationRequest, text: str) -> DeliberationRequest:
    return replace(request, model=request.model or text)


COUNCIL: Mapping[str, _Apply] = {
    "protocol": _protocol,
    "adaptive": _adaptive,
    "max_iterations": _turns,
    "timeout_seconds": _seconds,
}
"""What a council may set for all that it is asked."""

REQUEST: Mapping[str, _Apply] = {
    **COUNCIL,
    "num_agents": _agents,
    "seed": _with_seed,
    "model_profile": _model,
}
"""What one request may set."""


def check_protocol(name: str) -> ProtocolName:
    """Return the protocol, the default one for an empty name. Raises `InvalidRequest`."""
    chosen = name.strip().lower() or DEFAULT_PROTOCOL
    for known in PROTOCOLS:
        if known == chosen:
            return known
    near = get_close_matches(chosen, PROTOCOLS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidRequest(f"unknown protocol {name[:40]!r}; there are {', '.join(PROTOCOLS)}{hint}")


def fill(
    request: DeliberationRequest, params: Mapping[str, str], known: Mapping[str, _Apply]
) -> DeliberationRequest:
    """Return the request with what `params` say in place of its zeros. Raises `InvalidRequest`
    naming what is wrong.
    """
    for name, text in sorted(params.items()):
        apply = known.get(name)
        if apply is None:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(
                f"unknown custom_params {name[:40]!r}; there are {', '.join(known)}{hint}"
            )
        request = apply(request, text.strip())
    return request
