"""Moothall: councils of agents whose answer is selected by evidence."""

TYPE_CHECKING = False  # as in typing, whose import costs as much as the rest of the executor
if TYPE_CHECKING:
    from moothall.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """Import the clients when they are first used, because that takes half a second."""
    if name in {"AsyncClient", "Client"}:
        import moothall.client

        return getattr(moothall.client, name)
    raise AttributeError(f"module 'moothall' has no attribute {name!r}")
