"""Who makes ready what a device will want next, while it computes: the likely continuations of where texts stand.

Inputs: a Pushdown, and where each text is. Likely is all that may come where that is little (what is forced among it), and what
came in the same state before; beyond that what is nearest, symbol by symbol: what ends the string that is being written, then the names
that may follow, and their values. Knows nothing of torch, models or requests.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable

import numpy as np

from agentkit.errors import GrammarError
from agentkit.grammars.arena import Arena
from agentkit.grammars.device import MISS, Pushdown, token_symbols
from agentkit.grammars.place import Place

__all__ = ["Ahead"]

FEW = 8
"""Tokens that may come next, at most, for all of them to be followed."""
FOLLOWED = 4
"""Tokens per state that are remembered as having come there."""
ALONG = 12
"""Symbols that a run of text is followed for: about two tokens."""
REMEMBERED = 1 << 16
"""States and steps ahead that are remembered."""
AROUND = 512
"""Places that are looked at, at most, to find some that are not prepared yet."""


class Ahead:
    """Prepares a pushdown for what is likely to come. Belongs to one thread, as the pushdown does."""

    def __init__(self, pushdown: Pushdown) -> None:
        self.pushdown = pushdown
        self._picks: dict[tuple[Arena, int], deque[int]] = {}
        self._few: dict[tuple[Arena, int], frozenset[int]] = {}
        self._reached: dict[tuple[Place, Arena, int, int], tuple[Place, int] | None] = {}
        self._along: dict[tuple[Place, Arena, int], tuple[Place, int] | None] = {}
        self._around: dict[tuple[Place, Arena, int], list[tuple[Place, int]]] = {}
        self._settled: set[tuple[Place, Arena, int]] = set()  # around which nothing was left to prepare
        self._version = pushdown.version

    def noted(self, arena: Arena, node: int, token: int) -> None:
        """Remember that `token` came in a state: it is likely to come there again."""
        if len(self._picks) >= REMEMBERED:
            self._picks.clear()
        self._picks.setdefault((arena, node), deque(maxlen=FOLLOWED)).append(token)

    def look_ahead(self, place: Place, arena: Arena, node: int, tokens: int, places: int = 0) -> None:
        """Prepare what the device will want next, the masks of where texts lead and the way there: of the likely ones within `tokens` tokens, and of up
        to `places` further places, the nearest first.
        """
        if self._version != self.pushdown.version:
            self._version = self.pushdown.version
            self._reached.clear()
            self._along.clear()
            self._around.clear()
            self._settled.clear()
        self._look_along(place, arena, node)
        here = {(place, node)}
        for _ in range(tokens):
            here = {reached for at, state in here for token in self._likely(arena, state) if (reached := self._reach(at, arena, state, token)) is not None}
        self._look_around(place, arena, node, places)

    def _look_around(self, place: Place, arena: Arena, node: int, count: int) -> None:
        """Prepare up to `count` places that are not, from the nearest on."""
        start, left = (place, arena, node), count
        todo, seen = deque([(place, node)] if start not in self._settled else []), {place}
        while todo and left > 0 and len(seen) < AROUND and not self.pushdown.is_full:
            at, state = todo.popleft()
            key = (at, arena, state)
            if key not in self._around:
                if len(self._around) >= REMEMBERED:
                    self._around.clear()
                self._around[key] = self._prepared(at, arena, state)
                left -= 1
            for reached in self._around[key]:
                if reached[0] not in seen:
                    seen.add(reached[0])
                    todo.append(reached)
        if 0 < left == count:
            if len(self._settled) >= REMEMBERED:
                self._settled.clear()
            self._settled.add(start)

    def _prepared(self, place: Place, arena: Arena, node: int) -> list[tuple[Place, int]]:
        """Where each symbol leads from a place, with the state there; its mask is made ready unless all is forced, which the host says."""
        pushdown, found = self.pushdown, list[tuple[Place, int]]()
        symbols = pushdown.symbols(place)
        with contextlib.suppress(GrammarError):  # a state without tokens or past a limit: its matcher will say so
            if len(symbols) != 1 or arena.is_accepting(node):
                pushdown.know(place, arena, node)
            for symbol in symbols:
                after = pushdown.state_after(arena, node, symbol)
                following = pushdown.follow(place, (symbol,)) if after else None
                if following is not None:
                    found.append((following, after))
        return found

    def _look_along(self, place: Place, arena: Arena, node: int) -> None:
        """Where most symbols lead on, and on from there: through the counters of a string of bounded length, or of a number."""
        seen = {place}
        for _ in range(ALONG):
            key = (place, arena, node)
            if key not in self._along:
                if len(self._along) >= REMEMBERED:
                    self._along.clear()
                self._along[key] = self._usual(place, arena, node)
            reached = self._along[key]
            if reached is None or reached[0] in seen:
                return
            place, node = reached
            seen.add(place)

    def _usual(self, place: Place, arena: Arena, node: int) -> tuple[Place, int] | None:
        """Where most symbols lead from a place, its mask made ready; None if there is no such place, or no room."""
        pushdown = self.pushdown
        symbol = pushdown.usual_symbol(place.head)
        if symbol is None:
            return None
        with contextlib.suppress(GrammarError):  # as above
            after = pushdown.state_after(arena, node, symbol)
            following = pushdown.follow(place, (symbol,)) if after else None
            if following is not None and pushdown.know(following, arena, after) != MISS:
                return following, after
        return None

    def _reach(self, place: Place, arena: Arena, node: int, token: int) -> tuple[Place, int] | None:
        """Where a token leads, place and state, the way there and the mask made ready; None if the device could not go there."""
        key = (place, arena, node, token)
        if key not in self._reached:
            if len(self._reached) >= REMEMBERED:
                self._reached.clear()
                self._few.clear()
            self._reached[key] = None
            with contextlib.suppress(GrammarError):  # a state without tokens or past a limit: its matcher will say so
                after = arena.advance_token(node, token)
                following = self.pushdown.follow(place, token_symbols(self.pushdown.vocabulary, token)) if after else None
                if following is not None and self.pushdown.know(following, arena, after) != MISS:
                    self._reached[key] = (following, after)
        return self._reached[key]

    def _likely(self, arena: Arena, node: int) -> Iterable[int]:
        few = self._few.get((arena, node))
        if few is None:
            few = self._few[arena, node] = self._all_if_few(arena.mask(node))
        return few.union(self._picks.get((arena, node), ()))

    def _all_if_few(self, mask: np.ndarray) -> frozenset[int]:
        """The tokens of a mask if they are few; stop tokens, after which nothing comes, not counted in."""
        words = np.flatnonzero(mask)
        if len(words) > FEW:
            return frozenset()
        bits = np.argwhere(np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(len(words), 32))
        tokens = (32 * words[bits[:, 0]] + bits[:, 1]).tolist()
        return frozenset(tokens if len(tokens) <= FEW else ()).difference(self.pushdown.vocabulary.stop_token_ids)
