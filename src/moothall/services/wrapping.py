"""Putting something round a method's handler."""

from __future__ import annotations

from typing import Any

import grpc


def behaviour_of(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    """Return the function that answers, whatever the call's kind."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def with_behaviour(handler: grpc.RpcMethodHandler[Any, Any], behaviour: Any, read: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler of the same kind that answers by `behaviour`; `read` makes a request of bytes, None leaves bytes."""
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    made: grpc.RpcMethodHandler[Any, Any] = make(behaviour, read, handler.response_serializer)
    return made
