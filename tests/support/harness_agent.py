"""A small agent that speaks the Agent Client Protocol, as a program of its own: it asks its model
for actions until there are none, and applies them. Standard library only.

It does what the model says in `{"actions": [{"tool", "args"}]}`: `files.append`; `probe`, which
writes what it can reach; `ask`, which asks the client for a permission first.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

_MAX_TURNS = 5


class Agent:
    """Serves one client on stdin and stdout."""

    def __init__(self) -> None:
        self._asked = 0

    def serve(self) -> None:
        """Answer requests until the end of stdin."""
        for line in sys.stdin:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            if method == "initialize":
                info = {"name": "small", "version": "1.0"}
                result: Any = {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": info}
            elif method == "session/new":
                result = {"sessionId": "one"}
            elif method == "session/prompt":
                self._work(str(params["prompt"][0]["text"]))
                result = {"stopReason": "end_turn"}
            else:
                continue
            self._send({"id": message["id"], "result": result})

    def _work(self, prompt: str) -> None:
        messages = [{"role": "user", "content": prompt}]
        for _ in range(_MAX_TURNS):
            text = _ask_model(messages)
            actions = json.loads(text).get("actions", []) if text.startswith("{") else []
            results = [self._act(action["tool"], action.get("args", {})) for action in actions]
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": json.dumps(results)},
            ]
            if not actions:
                break
        self._update("agent_message_chunk", content={"type": "text", "text": f"Done: {text}"})

    def _act(self, tool: str, args: dict[str, Any]) -> str:
        self._update("tool_call", toolCallId=f"call-{tool}", title=tool, kind="edit")
        if tool == "ask" and not self._is_permitted():
            return "not permitted"
        if tool == "probe":
            Path("PROBE.txt").write_text(_probe(args), encoding="utf-8")
            return "probed"
        path = Path(args["path"])
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(text + args["content"], encoding="utf-8")
        return f"written at {time.time_ns()}"

    def _is_permitted(self) -> bool:
        self._asked += 1
        options = [
            {"optionId": "yes", "name": "yes", "kind": "allow_once"},
            {"optionId": "no", "name": "no", "kind": "reject_once"},
        ]
        call = {"toolCallId": "call-ask", "title": "ask", "kind": "edit"}
        params = {"sessionId": "one", "toolCall": call, "options": options}
        self._send(
            {"id": f"ask-{self._asked}", "method": "session/request_permission", "params": params}
        )
        answer = json.loads(sys.stdin.readline())
        return bool(answer["result"]["outcome"].get("optionId") == "yes")

    def _update(self, update: str, /, **fields: Any) -> None:
        params = {"sessionId": "one", "update": {"sessionUpdate": update, **fields}}
        self._send({"method": "session/update", "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def _ask_model(messages: list[dict[str, str]]) -> str:
    request = urllib.request.Request(  # noqa: S310 - its own model server
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer none"},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
        return str(json.load(response)["choices"][0]["message"]["content"])


def _probe(args: dict[str, Any]) -> str:
    findings = [f"{name}={value}" for name, value in sorted(os.environ.items())]
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            data = file.read_bytes()
            findings.append(data.replace(b"\0", b"\n").decode("utf-8", "replace"))
        except OSError:
            continue
    for host, port in args["addresses"]:
        try:
            socket.create_connection((host, port), timeout=2).close()
            findings.append(f"REACHED {host}:{port}")
        except OSError as error:
            findings.append(f"not reached: {host}:{port}: {error}")
    for path in args["paths"]:
        try:
            findings.append(f"READ {path}: {Path(path).read_text(encoding='utf-8')}")
        except OSError as error:
            findings.append(f"not read: {path}: {error}")
    return "\n".join(findings)


if __name__ == "__main__":
    Agent().serve()
