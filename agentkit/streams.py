"""Async iterators that end when their reader leaves. Knows nothing of what flows through them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

__all__ = ["closing_source"]

T = TypeVar("T")


async def closing_source(source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The same items; closing this generator (contextlib.aclosing) closes the source too, at once, where it can be closed."""
    try:
        async for item in source:
            yield item
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
