"""LangGraph: a node a seat and phase, fan-out by edges, each deliberation a thread, with or without
its SQLite checkpointer.
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

from benchmarks.rivals import words


def _merged(left: dict[int, str], right: dict[int, str]) -> dict[int, str]:
    return {**left, **right}


class State(TypedDict):
    """What nodes share; each writes its own key."""

    proposals: Annotated[dict[int, str], _merged]
    reviews: Annotated[dict[int, str], _merged]
    revised: Annotated[dict[int, str], _merged]


def _compiled(model: ChatOpenAI, saver: AsyncSqliteSaver | None) -> Any:
    async def ask(text: str) -> str:
        return str((await model.ainvoke([SystemMessage(words.SYSTEM), HumanMessage(text)])).content)

    def proposing(seat: int) -> Any:
        async def node(_: State) -> dict[str, Any]:
            return {"proposals": {seat: await ask(words.propose(seat))}}

        return node

    def reviewing(seat: int) -> Any:
        async def node(state: State) -> dict[str, Any]:
            other = words.reviewed_by(seat)
            return {"reviews": {other: await ask(words.review(state["proposals"][other]))}}

        return node

    def revising(seat: int) -> Any:
        async def node(state: State) -> dict[str, Any]:
            return {
                "revised": {
                    seat: await ask(words.revise(state["proposals"][seat], state["reviews"][seat]))
                }
            }

        return node

    graph = StateGraph(State)
    for seat in words.SEATS:
        graph.add_node(f"propose-{seat}", proposing(seat))
        graph.add_node(f"review-{seat}", reviewing(seat))
        graph.add_node(f"revise-{seat}", revising(seat))
    for seat in words.SEATS:
        graph.add_edge(START, f"propose-{seat}")
        graph.add_edge([f"propose-{other}" for other in words.SEATS], f"review-{seat}")
        graph.add_edge([f"review-{other}" for other in words.SEATS], f"revise-{seat}")
        graph.add_edge(f"revise-{seat}", END)
    return graph.compile(checkpointer=saver)


async def _opened(
    url: str, stack: AsyncExitStack, *, durable: bool
) -> Callable[[], Awaitable[str]]:
    saver = None
    if durable:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mh-rival-"))
        saver = await stack.enter_async_context(
            AsyncSqliteSaver.from_conn_string(str(Path(folder) / "checkpoints.sqlite"))
        )
    graph = _compiled(ChatOpenAI(model=words.MODEL, base_url=url, api_key=words.KEY), saver)
    threads = itertools.count()

    async def deliberate() -> str:
        state = await graph.ainvoke(
            {"proposals": {}, "reviews": {}, "revised": {}},
            {"configurable": {"thread_id": str(next(threads))}},
        )
        return str(max(state["revised"].values()))

    return deliberate


@asynccontextmanager
async def open_graph(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Nothing is kept: a crash loses what was under way."""
    async with AsyncExitStack() as stack:
        yield await _opened(url, stack, durable=False)


@asynccontextmanager
async def open_durable_graph(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Every step is in an SQLite file."""
    async with AsyncExitStack() as stack:
        yield await _opened(url, stack, durable=True)
