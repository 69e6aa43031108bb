"""LangGraph: a node for each seat and phase, fan-out by edges, and a thread for each deliberation,
with or without its SQLite checkpointer.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.rivals import prompts


def _merge(old: dict[int, str], new: dict[int, str]) -> dict[int, str]:
    return {**old, **new}


class State(TypedDict):
    """The state of the graph; each node writes its own key."""

    proposals: Annotated[dict[int, str], _merge]
    reviews: Annotated[dict[int, str], _merge]
    revisions: Annotated[dict[int, str], _merge]


def _compile_graph(model: ChatOpenAI, saver: AsyncSqliteSaver | None) -> Any:
    async def call_model(text: str) -> str:
        return str(
            (await model.ainvoke([SystemMessage(prompts.SYSTEM), HumanMessage(text)])).content
        )

    def make_propose_node(seat: int) -> Any:
        async def node(_: State) -> dict[str, Any]:
            return {"proposals": {seat: await call_model(prompts.propose(seat))}}

        return node

    def make_review_node(seat: int) -> Any:
        async def node(state: State) -> dict[str, Any]:
            reviewed_seat = prompts.reviewed_by(seat)
            return {
                "reviews": {
                    reviewed_seat: await call_model(
                        prompts.review(state["proposals"][reviewed_seat])
                    )
                }
            }

        return node

    def make_revise_node(seat: int) -> Any:
        async def node(state: State) -> dict[str, Any]:
            return {
                "revisions": {
                    seat: await call_model(
                        prompts.revise(state["proposals"][seat], state["reviews"][seat])
                    )
                }
            }

        return node

    graph = StateGraph(State)
    for seat in prompts.SEATS:
        graph.add_node(f"propose-{seat}", make_propose_node(seat))
        graph.add_node(f"review-{seat}", make_review_node(seat))
        graph.add_node(f"revise-{seat}", make_revise_node(seat))
    for seat in prompts.SEATS:
        graph.add_edge(START, f"propose-{seat}")
        graph.add_edge([f"propose-{source}" for source in prompts.SEATS], f"review-{seat}")
        graph.add_edge([f"review-{source}" for source in prompts.SEATS], f"revise-{seat}")
        graph.add_edge(f"revise-{seat}", END)
    return graph.compile(checkpointer=saver)


async def _open(url: str, stack: AsyncExitStack, *, durable: bool) -> Callable[[], Awaitable[str]]:
    saver = None
    if durable:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mh-rival-"))
        saver = await stack.enter_async_context(
            AsyncSqliteSaver.from_conn_string(str(Path(folder) / "checkpoints.sqlite"))
        )
    graph = _compile_graph(
        ChatOpenAI(model=prompts.MODEL, base_url=url, api_key=prompts.KEY), saver
    )
    threads = itertools.count()

    async def deliberate() -> str:
        state = await graph.ainvoke(
            {"proposals": {}, "reviews": {}, "revisions": {}},
            {"configurable": {"thread_id": str(next(threads))}},
        )
        return str(max(state["revisions"].values()))

    return deliberate


@asynccontextmanager
async def open_graph(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Run the graph without a checkpointer: a crash loses running deliberations."""
    async with AsyncExitStack() as stack:
        yield await _open(url, stack, durable=False)


@asynccontextmanager
async def open_durable_graph(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Run the graph with a checkpointer that writes every step to an SQLite file."""
    async with AsyncExitStack() as stack:
        yield await _open(url, stack, durable=True)
