"""The model server that a harness sees: chat completions, Responses and Messages, answered by a
seat's own model.

Requests come from inside a sandbox and are hostile. Replies are complete when they are sent; a
harness that asks for a stream gets them in a few events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from moothall.domain.chat import AnswerModel
from moothall.domain.ids import digest
from moothall.errors import (
    BudgetExceeded,
    ContextOverflow,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    Temporary,
)
from moothall.harnesses.chat_api import CHAT, ModelApi
from moothall.harnesses.messages_api import MESSAGES
from moothall.harnesses.responses_api import RESPONSES

JSON, _EVENTS = "application/json", "text/event-stream"
_APIS: Mapping[str, ModelApi] = {
    "/chat/completions": CHAT,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
}
_COUNT_TOKENS = "/messages/count_tokens"
_CHARS_PER_TOKEN = 4
_STATUSES: Mapping[type[MoothallError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    ContextOverflow: (400, "context_length_exceeded"),
    BudgetExceeded: (402, "insufficient_quota"),
    DeadlineExceeded: (402, "insufficient_quota"),
}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply over HTTP: status, content type and content."""

    status: int
    content: str
    type: str = JSON


async def answer(method: str, path: str, body: str, model: str, ask: AnswerModel) -> HttpReply:
    """Answer a request to the model server. Errors become HTTP errors in the form of the API,
    except `Temporary` ones, which are raised: they end the work of the whole deliberation.
    """
    route = path.partition("?")[0].rstrip("/").removeprefix("/v1")
    if method == "GET" and route == "/models":
        listed = {"object": "list", "data": [{"id": model, "object": "model"}]}
        return HttpReply(200, json.dumps(listed))
    if method == "POST" and route == _COUNT_TOKENS:
        return HttpReply(200, json.dumps({"input_tokens": len(body) // _CHARS_PER_TOKEN}))
    api = _APIS.get(route)
    if method != "POST" or api is None:
        return _error(
            CHAT,
            404,
            "not_found",
            f"{method} {path[:100]} is not served; POST to one of {', '.join(_APIS)}",
        )
    try:
        request = api.parse(body)
        reply = await ask(request.question)
    except Temporary:
        raise
    except MoothallError as error:
        status, code = next(
            (known for kind, known in _STATUSES.items() if isinstance(error, kind)),
            (422, error.code.lower()),
        )
        return _error(api, status, code, error.message)
    number = digest(body)[:24]
    if request.streamed:
        return HttpReply(200, "".join(api.stream(number, model, request, reply)), _EVENTS)
    return HttpReply(200, json.dumps(api.write(number, model, request, reply)))


def _error(api: ModelApi, status: int, code: str, message: str) -> HttpReply:
    return HttpReply(status, json.dumps(api.write_error(code, message)))
