"""Process-wide settings of the grammar engine, and the register of vocabularies whose caches they bound."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary


class Settings:
    """Bounds of the caches; change them with `agentkit.grammars.configure`."""

    def __init__(self) -> None:
        self.bank_bytes = 256 << 20
        self.arena_bytes = 384 << 20
        self.disk_cache: Path | None = None
        self._vocabularies: weakref.WeakSet[Vocabulary] = weakref.WeakSet()
        self._cleaners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def register(self, vocabulary: Vocabulary) -> None:
        with self._lock:
            self._vocabularies.add(vocabulary)

    def on_clear(self, clean: Callable[[], None]) -> None:
        """Have `clean` called by clear_caches."""
        self._cleaners.append(clean)

    def clear(self) -> None:
        with self._lock:
            vocabularies = list(self._vocabularies)
        for vocabulary in vocabularies:
            vocabulary.clear()
        for clean in self._cleaners:
            clean()


settings = Settings()


def clear_caches() -> None:
    """Drop all in-process caches: compiled grammars, states, transitions, mask rows. Matchers in use go on working."""
    settings.clear()


def configure(*, disk_cache: str | Path | None = None, bank_bytes: int | None = None, arena_bytes: int | None = None) -> None:
    """Set bounds of the caches.

    Args:
        disk_cache: folder in which compiled grammars are kept between processes; None keeps nothing on disk.
        bank_bytes: bytes of mask rows per vocabulary before they are dropped and rebuilt on demand (default 256 MiB).
        arena_bytes: bytes of states and masks per vocabulary before new grammars get a fresh arena (default 384 MiB).

    Raises:
        ValueError: a bound is not positive.
    """
    for name, value in (("bank_bytes", bank_bytes), ("arena_bytes", arena_bytes)):
        if value is not None:
            if value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
            setattr(settings, name, int(value))
    settings.disk_cache = None if disk_cache is None else Path(disk_cache)
