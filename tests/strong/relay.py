"""A model server for a player: each request is written to a file, and the reply is read from
another.

    python tests/strong/relay.py FOLDER [PORT [SEATS]]

Request N becomes FOLDER/N.request.json (the body as it was sent) and FOLDER/N.prompt.md (what is
new in it, to read). The reply is FOLDER/N.reply.json: {"text": "...", "calls": [{"name": "bash",
"arguments": {...}}], "finish_reason": "stop"}, of which each part may be left out. Write it
elsewhere and move it there. The server answers probes for native tools itself.

SEATS is a JSON file with a diff for each seat, {"agent-dev-001": "diff ..."}. The first proposals
of these seats are not played: the server applies the diff in their name and submits it. All other
calls are written to files: those of the judging agents, reviews, revisions and a second wave.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

_WAIT_SECONDS = 0.1
_CHARS_PER_TOKEN = 4


class Relay:
    """Requests and replies in `folder`, numbered as they come."""

    def __init__(self, folder: Path, seats: Mapping[str, str]) -> None:
        self._folder = folder
        self._seats = seats
        self._turns: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._seen: dict[str, int] = {}

    async def list_models(self, _request: web.Request) -> web.Response:
        """Name the one model and its window."""
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": "player", "object": "model", "max_model_len": 200_000}],
            }
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Wait for the player's reply; stream it where the request asks for a stream."""
        body = await request.json()
        call_id = request.headers.get("X-Request-Id", "")
        if "/probe/" in call_id:
            offered = body.get("tools")
            return await self._send(
                request,
                body,
                {"calls": [_probe(offered[0]["function"])]} if offered else {"text": "Yes."},
            )
        _, seat, phase, step, *_ = [*call_id.split("/"), "", "", "", ""]
        first = phase == "propose" and step.startswith("0.")
        if first and (diff := self._seats.get(seat)):
            self._turns[seat] += 1
            return await self._send(
                request, body, _apply(diff) if self._turns[seat] == 1 else _SUBMIT
            )
        number = next(self._numbers)
        self._write(number, call_id, body)
        place = self._folder / f"{number}.reply.json"
        while not place.exists():
            await asyncio.sleep(_WAIT_SECONDS)
        return await self._send(request, body, json.loads(place.read_text(encoding="utf-8")))

    def _write(self, number: int, call_id: str, body: dict[str, Any]) -> None:
        place = self._folder / f"{number}.request.json"
        place.write_text(
            json.dumps({"call_id": call_id, "at": time.time(), "body": body}, indent=1),
            encoding="utf-8",
        )
        seat = "/".join(call_id.split("/")[:3])
        messages = body["messages"]
        sent_count = self._seen.get(seat, 0)
        self._seen[seat] = len(messages)
        new = messages[sent_count:] if sent_count < len(messages) else messages
        tools = (
            f"\n\n# tools\n{json.dumps(body['tools'], indent=1)}"
            if body.get("tools") and not sent_count
            else ""
        )
        parts = [
            f"# {message['role']}\n{_readable(message)}"
            for message in new
            if message["role"] != "assistant" or not sent_count
        ]
        prompt = self._folder / f"{number}.prompt.md"
        prompt.write_text(f"{call_id}\n\n" + "\n\n".join(parts) + tools, encoding="utf-8")

    async def _send(
        self, request: web.Request, body: dict[str, Any], reply: dict[str, Any]
    ) -> web.StreamResponse:
        text, calls = reply.get("text", ""), reply.get("calls", [])
        tool_calls = [
            {
                "index": index,
                "id": f"call_{time.monotonic_ns()}_{index}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json.dumps(call.get("arguments", {})),
                },
            }
            for index, call in enumerate(calls)
        ]
        finish = reply.get("finish_reason") or ("tool_calls" if tool_calls else "stop")
        prompt_tokens = (
            len(json.dumps(body["messages"])) + len(json.dumps(body.get("tools", [])))
        ) // _CHARS_PER_TOKEN
        answer_tokens = (len(text) + len(json.dumps(tool_calls))) // _CHARS_PER_TOKEN
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
        }
        if not body.get("stream"):
            message = {
                "role": "assistant",
                "content": text or None,
                **({"tool_calls": tool_calls} if tool_calls else {}),
            }
            choice = {"index": 0, "message": message, "finish_reason": finish}
            answer = {
                "id": "relay",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "player",
            }
            return web.json_response({**answer, "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = {
            "role": "assistant",
            "content": text or None,
            **({"tool_calls": tool_calls} if tool_calls else {}),
        }
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        ]
        for chunk in chunks:
            await response.write(
                b"data: "
                + json.dumps({"id": "relay", "model": "player", **chunk}).encode()
                + b"\n\n"
            )
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


_SUBMIT = {"calls": [{"name": "submit", "arguments": {"summary": "The change is made."}}]}


def _apply(diff: str) -> dict[str, Any]:
    """Return the reply that applies a diff with the shell."""
    return {
        "calls": [
            {
                "name": "bash",
                "arguments": {
                    "command": f"git apply --whitespace=nowarn <<'END_OF_DIFF'\n{diff}END_OF_DIFF"
                },
            }
        ]
    }


def _probe(function: dict[str, Any]) -> dict[str, Any]:
    names = function.get("parameters", {}).get("properties", {})
    return {"name": function["name"], "arguments": dict.fromkeys(names, True)}


def _readable(message: dict[str, Any]) -> str:
    calls = [
        f"{call['function']['name']} {call['function']['arguments']}"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join([str(message.get("content") or ""), *calls])


def main(folder: str, port: str = "8123", seats: str = "") -> None:
    """Serve on loopback until stopped."""
    relay = Relay(
        Path(folder), json.loads(Path(seats).read_text(encoding="utf-8")) if seats else {}
    )
    Path(folder).mkdir(parents=True, exist_ok=True)
    application = web.Application(client_max_size=64_000_000)
    application.router.add_get("/v1/models", relay.list_models)
    application.router.add_post("/v1/chat/completions", relay.chat)
    web.run_app(application, host="127.0.0.1", port=int(port), print=None, shutdown_timeout=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
