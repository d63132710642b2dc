"""Process-wide settings of the grammar engine, and the register of vocabularies whose caches they bound."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentkit.grammars.disk import DiskCache

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary


class Settings:
    """Bounds of the caches; change them with `agentkit.grammars.configure`."""

    def __init__(self) -> None:
        self.bank_bytes = 256 << 20
        self.arena_bytes = 384 << 20
        self.disk_bytes = 128 << 20
        self.disk: DiskCache | None = None
        self._disk_chosen = False
        self._vocabularies: weakref.WeakSet[Vocabulary] = weakref.WeakSet()
        self._cleaners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def register(self, vocabulary: Vocabulary) -> None:
        with self._lock:
            self._vocabularies.add(vocabulary)

    def on_clear(self, clean: Callable[[], None]) -> None:
        """Have `clean` called by clear_caches."""
        self._cleaners.append(clean)

    def keep_on_disk(self, folder: Path | None) -> None:
        """Where compiled grammars are kept from now on."""
        with self._lock:
            self._disk_chosen = True
            self.disk = None if folder is None else DiskCache(folder, self.disk_bytes)

    def suggest_disk(self, folder: Path) -> None:
        """The same, unless a folder (or none) has been chosen before."""
        if not self._disk_chosen:
            self.keep_on_disk(folder)

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


class _Unchanged:
    """The default of an option that stays as it is unless given, where None means something."""


_UNCHANGED: Final = _Unchanged()


def configure(
    *,
    disk_cache: str | Path | _Unchanged | None = _UNCHANGED,
    disk_bytes: int | None = None,
    bank_bytes: int | None = None,
    arena_bytes: int | None = None,
) -> None:
    """Set bounds of the caches; what is not given stays as it is.

    Args:
        disk_cache: folder in which compiled grammars and tries of vocabularies are kept between processes; None keeps nothing on
            disk. Until this is called nothing is kept, except that an Engine keeps them in its cache folder.
        disk_bytes: bytes that the folder may take (default 128 MiB); what has not been used for longest goes first.
        bank_bytes: bytes of mask rows per vocabulary (default 256 MiB). Beyond that rows go that nobody needs: those of grammars that
            are not held any more first, and what has not been asked for lately.
        arena_bytes: bytes of states and masks per vocabulary before new grammars get a fresh arena (default 384 MiB).

    Raises:
        ValueError: a bound is not a positive integer, or disk_cache is no path. Nothing is changed then.
    """
    bounds: dict[str, Any] = {"disk_bytes": disk_bytes, "bank_bytes": bank_bytes, "arena_bytes": arena_bytes}
    for name, value in bounds.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise ValueError(f"{name} must be a positive integer, bytes, not {value!r}")
    folder: Any = disk_cache
    if not isinstance(folder, str | Path | _Unchanged | None):
        raise ValueError(f"disk_cache must be the path of a folder, or None for nothing on disk, not {disk_cache!r}")
    for name, value in bounds.items():
        if value is not None:
            setattr(settings, name, value)
    if not isinstance(disk_cache, _Unchanged):
        settings.keep_on_disk(None if disk_cache is None else Path(disk_cache).expanduser())
    elif disk_bytes is not None and settings.disk is not None:
        settings.keep_on_disk(settings.disk.folder)
