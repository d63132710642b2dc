"""Pins: prefixes whose keys and values stay, and their way to disk and back, as an application sees them.

Inputs: the engine's loop, pool and intake. All work on pages happens on the engine thread; handles may be used from any.
This module knows nothing of models or of how a request is scheduled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from agentkit.engine.kv import PAGE, KVPool
from agentkit.engine.loop import EngineLoop
from agentkit.engine.prefix_file import is_meant_for, load_prefixes, save_prefixes
from agentkit.engine.prefix_node import Node, domain
from agentkit.engine.request import Outcome, Request, TokenEvent
from agentkit.errors import EngineError

MOST = 0.75
"""Pins may hold at most this share of the pages, so that requests always get on."""


class Pin:
    """A prefix that eviction may not touch, until `release()` or the end of a `with` block. `tokens`: its length."""

    def __init__(self, pool: KVPool, loop: EngineLoop, tokens: int) -> None:
        self._pool = pool
        self._loop = loop
        self._node: Node | None = None
        self._done: Future[None] = Future()
        self._released = False
        self._lock = threading.Lock()
        self.tokens = tokens

    def wait(self, timeout: float | None = None) -> Pin:
        """Blocks until the prefix is computed. Raises what went wrong, or TimeoutError after `timeout` seconds."""
        self._done.result(timeout)
        return self

    @property
    def refused(self) -> bool:
        """Whether it is known that the prefix is not kept; `wait` says why."""
        return self._done.done() and self._done.exception() is not None

    def release(self) -> None:
        """The prefix may be evicted from now on; later calls do nothing."""
        with self._lock:
            released, self._released = self._released, True
        if not released and self._loop.is_usable:
            self._loop.call(self._unpin)

    def kept(self, node: Node | None) -> None:
        """On the engine thread: the prefix is computed and lies at `node`."""
        if node is not None and not self._released:
            self._pool.tree.pin(node)
            self._node = node

    def heard(self, event: TokenEvent | Outcome | BaseException) -> None:
        """The sink of the request that computes the prefix; runs before `kept`, so waiting ends through the loop."""
        if isinstance(event, BaseException):
            self._done.set_exception(event)

    def finish(self, error: EngineError | None = None) -> None:
        """On the engine thread, after `kept`. error: what whoever waits is told instead of success."""
        if error is not None:
            self._done.set_exception(error)
        elif self._node is None and not self._released:
            self._done.set_exception(EngineError("the prefix could not be kept; prefix_caching is off, or its pages collide with others"))
        else:
            self._done.set_result(None)

    def _unpin(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._pool.tree.unpin(node)

    def __enter__(self) -> Pin:
        if self._released:
            raise EngineError("this pin was released; pin the prefix again")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class PrefixCache:
    """The engine's computed prefixes: `engine.prefix`.

    model: digest of the model and of how it is computed, asked for when files are written or read.
    file: where pinned prefixes are kept between processes. It is read here if it is for this model and precision, and written
        over when something is pinned that it does not hold. Raises EngineError for a file that is damaged or no prefix file, and
        where its folder cannot be made.
    """

    def __init__(self, pool: KVPool, loop: EngineLoop, model: Callable[[], str], file: Path | None = None) -> None:
        self._pool = pool
        self._loop = loop
        self._model = model
        self._file = file
        self._in_file: set[Node] = set()
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EngineError(f"prefix_file={str(file)!r}: its folder cannot be made ({error}); give another path") from error
            if file.exists() and is_meant_for(pool, file, model()):
                load_prefixes(pool, file, model())  # the engine thread does not run yet
                self._in_file = set(pool.tree)

    def pin(self, request: Request, *, wait: bool) -> Pin:
        """Computes a prefill request's prompt and pins it. Raises EngineError if pins would hold too much."""
        pool = self._pool
        self._check_enabled("pinned")
        tokens = len(request.prompt)
        size = pool.tree.pin_size(tokens)
        refusal = self._refusal(tokens, size)
        if refusal is not None:  # unless pins hold part of it already, which the engine thread knows
            refusal = self._loop.call(lambda: self._refusal(tokens, size - self._held(request))).result()
        if refusal is not None:
            raise refusal
        pin = Pin(pool, self._loop, tokens)

        def kept(node: Node | None) -> None:
            # others that were on their way at the same time, each within the limit alone, may have been pinned since
            new = 0 if node is None else pool.tree.unpinned(node)
            refusal = self._refusal(tokens, new)
            pin.kept(node if refusal is None else None)
            shared = node is not None and request.domain == domain()  # salted prefixes are never written
            pin.finish(self._write() if refusal is None and shared and node not in self._in_file else refusal)

        request.on_kept = kept
        request.sink = pin.heard
        self._loop.submit(request)
        return pin.wait() if wait else pin

    def _held(self, request: Request) -> int:
        """On the engine thread: how many pages of a prompt pins hold."""
        tree = self._pool.tree
        root = tree.enter(request.domain)
        nodes = tree.match(root, request.prompt)
        rest = request.prompt[PAGE * len(nodes) :]
        part, shared = tree.match_part(nodes[-1] if nodes else root, rest)
        tree.leave(root)
        last = part if part is not None and shared == len(rest) else nodes[-1] if nodes else None
        return 0 if last is None else tree.protected(last)

    def _write(self) -> EngineError | None:
        """On the engine thread: what is pinned now, to the file that was given; returns what went wrong."""
        if self._file is None:
            return None
        try:
            save_prefixes(self._pool, self._file, self._model(), pinned_only=True)
            self._in_file = {node for node in self._pool.tree if self._pool.tree.is_pinned(node)}
        except (OSError, EngineError) as error:
            failure = EngineError(f"the prefix is computed and pinned, but could not be written to {self._file}: {error}")
            failure.__cause__ = error
            return failure
        return None

    def _refusal(self, tokens: int, pages: int) -> EngineError | None:
        """Why a prefix of so many tokens, `pages` of whose pages no pin holds yet, may not be pinned; None: it may."""
        pool = self._pool
        if pages + pool.tree.pinned <= MOST * pool.page_count:
            return None
        return EngineError(
            f"{tokens} tokens cannot be pinned: pins hold {pool.tree.pinned} of {pool.page_count} pages and may hold {MOST:.0%}; "
            "release others or raise kv_memory"
        )

    def save(self, path: str | Path, *, pinned_only: bool = True) -> int:
        """Writes pinned prefixes (or all that is cached) to one file, atomically; returns how many tokens.

        A later engine with the same model and settings starts warm from it. Prefixes of salted requests are never written.
        Raises OSError where the folder cannot be written to, EngineError where writing fails or prefix_caching is off.
        """
        self._check_enabled("saved")
        model = self._model()
        return self._loop.call(lambda: save_prefixes(self._pool, Path(path), model, pinned_only=pinned_only)).result()

    def load(self, path: str | Path) -> int:
        """Takes in a file that `save` wrote, as far as there is room; returns how many tokens can be used now.

        What was loaded is not pinned: pin what must stay. Raises FileNotFoundError, and EngineError for a file that is damaged,
        of another version, or of another model or precision, and where prefix_caching is off.
        """
        self._check_enabled("loaded")
        model = self._model()
        return self._loop.call(lambda: load_prefixes(self._pool, Path(path), model)).result()

    def _check_enabled(self, what: str) -> None:
        if not self._pool.tree.enabled:
            raise EngineError(f"prefix_caching is off, so nothing can be {what}; create the engine with prefix_caching=True")

    def clear(self) -> None:
        """Forgets all that is not pinned or in use."""
        self._loop.call(self._pool.tree.clear).result()
