"""What a device needs to follow grammars by itself: a pushdown automaton in dense tables, made from an arena's nodes as they are needed.

An arena's node says everything that may still follow. Here it is taken apart into a *head*, what is being read, and *frames*, what is
read when the head is over, the next one last: a head is then the same wherever it occurs, and recursion is a stack. A head is a choice
of texts, each a sequence of nodes; what all of them have in common at the end is a frame. A head's row says for each symbol (256
bytes, then special tokens): DEAD, MISS (not handed over yet), or the next head and perhaps a frame to push. A head that may be over
and cannot read a symbol gives way to the frame below. Where both could read it the two would have to be followed at once; that is a
miss, and such a frame is not split off again.

The host expands rows, walks them as the device does, and notes what has changed since it was last handed over. Everything else is a
miss on the device, which the host answers from the arena. Inputs: arenas and their nodes. Knows nothing of torch, models or requests.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from agentkit.errors import GrammarError
from agentkit.grammars.place import Place, key_of

if TYPE_CHECKING:
    from agentkit.grammars.arena import Arena
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["DEAD", "MISS", "OVER", "SYMBOLS", "Changes", "Pushdown", "token_symbols"]

DEAD, MISS = -1, -2
OVER = 0
"""The head of which nothing is left to read."""
USUAL = 8
"""Bytes that lead to the same head, at least, for it to be where texts usually go on."""
SPECIALS = 32
SYMBOLS = 256 + SPECIALS
"""Columns of a row; special tokens beyond so many are misses."""
TEXTS, MANY = 4, 16
"""Texts of a head where it could be told in other nodes as well; where it could not."""


Text = tuple[int, ...]
"""Nodes that are read one after the other."""
Choice = tuple[Text, ...]
"""What a head or frame is: texts of which one is read; sorted."""


@dataclass
class Changes:
    """What has been written since it was last handed over.

    heads: numbers of rows of `moves` and `nullable`.   keys: entries of the map of masks.   rows: rows of the bank.
    """

    heads: set[int] = field(default_factory=set)
    keys: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Pushdown:
    """Heads, their rows, and the masks of places that are known.

    states, rows: how many heads and mask rows there is room for. depth: frames that a place may have on the device.
    Belongs to one thread. When something is full, `is_full` is true and what is new is a miss; `clear` begins anew.
    """

    def __init__(self, vocabulary: Vocabulary, *, states: int = 1 << 14, rows: int = 1 << 12, depth: int = 64) -> None:
        self.vocabulary = vocabulary
        self.depth = depth
        self.moves: np.ndarray = np.empty((states, SYMBOLS, 2), np.int32)
        """int32 [states, SYMBOLS, 2]: next head, or DEAD or MISS; frame to push, or -1."""
        self.nullable: np.ndarray = np.empty(states, np.int32)
        self.bank: np.ndarray = np.zeros((rows, vocabulary.words), np.uint32)
        """Masks, equal ones once."""
        slots = 1 << (4 * rows - 1).bit_length()
        self.keys: np.ndarray = np.empty(slots, np.int64)
        self.row_of: np.ndarray = np.empty(slots, np.int32)
        """The map of masks: open addressing by key_of(place); 0 is no key."""
        self.generation = 0
        """How often it has been begun."""
        self.clear()

    def clear(self) -> None:
        """Forget all heads, places and masks; places handed out before mean nothing any more."""
        self.moves[:], self.nullable[:] = MISS, 0
        self.moves[OVER], self.nullable[OVER] = DEAD, 1
        self.keys[:] = 0
        self.is_full = False
        self.generation += 1
        self.changes = Changes(heads={OVER})
        self._numbers: dict[tuple[Arena, Choice], int] = {}
        self._heads: list[tuple[Arena, Choice] | None] = [None]
        self._derivatives: dict[tuple[Arena, int], np.ndarray] = {}
        self._expanded: set[int] = {OVER}
        self._leads_to: dict[int, list[int]] = {}
        self._partial: set[int] = set()
        self._pushers: dict[int, set[int]] = {}
        self._joined: set[tuple[Arena, int]] = set()  # items before which nothing is split off
        self._rows: dict[bytes, int] = {}
        self._known = 0

    @property
    def size(self) -> int:
        """Heads and frames so far."""
        return len(self._heads)

    @property
    def version(self) -> tuple[int, int]:
        """Where it has changed, places that texts were followed to before may be others now."""
        return self.generation, len(self._joined)

    # -- heads --------------------------------------------------------------------------------------------------

    def number(self, arena: Arena, choice: Choice) -> int:
        """The number of a head or frame; MISS where there is no room for another one."""
        if choice == ((),):
            return OVER
        number = self._numbers.get((arena, choice))
        if number is None:
            number = len(self._heads)
            if number == len(self.nullable):
                self.is_full = True
                return MISS
            self._numbers[arena, choice] = number
            self._heads.append((arena, choice))
            self.nullable[number] = any(all(map(arena.is_accepting, text)) for text in choice)
            self.changes.heads.add(number)
        return number

    def expand(self, head: int) -> None:
        """Fill the row of a head; all of it stays a miss where the grammar passes a limit, which its matcher will say if a text comes here.

        Where an undeclared key may be read, which has a state for every name, only the symbols that are followed are filled in.
        """
        if head not in self._expanded:
            self._expanded.add(head)
            if any(map(self._entry(head)[0].is_in_undeclared_key, self._beginnings(head)[0])):
                self._partial.add(head)
            else:
                with contextlib.suppress(GrammarError):
                    self._write(head)

    def _entry(self, head: int) -> tuple[Arena, Choice]:
        entry = self._heads[head]
        assert entry is not None
        return entry

    def _write(self, head: int) -> None:
        """A head's row: for each symbol, what is left of its texts."""
        (arena, _), row = self._entry(head), self.moves[head]
        items, rests = self._beginnings(head)
        afters = np.stack([self._after(arena, item) for item in items], axis=1)
        row[:] = DEAD, -1
        same: dict[bytes, list[int]] = {}
        for symbol in np.flatnonzero(afters.any(1)).tolist():
            same.setdefault(afters[symbol].tobytes(), []).append(symbol)
        for symbols in same.values():
            nodes = afters[symbols[0]].tolist()
            row[symbols] = self._move(head, arena, [(node, rest) for node, rest in zip(nodes, rests, strict=True) if node])
        self._changed(head)

    def _write_one(self, head: int, symbol: int) -> None:
        """The same for one symbol of a head of which not all shall be filled in."""
        arena, _ = self._entry(head)
        pairs = []
        for item, rest in zip(*self._beginnings(head), strict=True):
            node = self.state_after(arena, item, symbol)
            pairs += [(node, rest)] if node else []
        self.moves[head, symbol] = self._move(head, arena, pairs)
        self._changed(head)

    def _beginnings(self, head: int) -> tuple[list[int], list[Text]]:
        """The nodes that a head may begin with, and what is read after each."""
        arena, choice = self._entry(head)
        items, rests = [], []
        for text in choice:
            for k, item in enumerate(text):
                items.append(item)
                rests.append(text[k + 1 :])
                if not arena.is_accepting(item):
                    break
        return items, rests

    def _move(self, head: int, arena: Arena, pairs: list[tuple[int, Text]]) -> tuple[int, int]:
        """(next head, frame) for what is left after a symbol: a node and what is read after it, each."""
        left = {text + rest for node, rest in pairs for text in _texts(arena, node)}
        if len(left) > TEXTS:  # texts that share their beginnings would multiply: choices stay the nodes that they are
            left = {arena.sequence(node) + rest for node, rest in pairs}
        if not left:
            return DEAD, -1
        choice, rest = self._split(arena, left)
        following, frame = self.number(arena, choice), self.number(arena, (rest,))
        if len(left) > MANY or MISS in (following, frame):
            return MISS, -1
        if frame > 0:
            self._pushers.setdefault(frame, set()).add(head)
        return following, frame or -1

    def _after(self, arena: Arena, item: int) -> np.ndarray:
        """int32 [SYMBOLS]: the node after each symbol. A special token that no grammar has used when an item was made is none of its own."""
        after = self._derivatives.get((arena, item))
        if after is None:
            after = self._derivatives[arena, item] = np.zeros(SYMBOLS, np.int32)
            after[:256] = arena.successors(item)
            specials = self.vocabulary.symbol_tokens[:SPECIALS]
            after[256 : 256 + len(specials)] = [arena.advance_token(item, token) for token in specials]
        return after

    def _split(self, arena: Arena, texts: Collection[Text]) -> tuple[Choice, Text]:
        """A choice of texts as a head, and what all of them end with, as far as it may be split off."""
        first, *others = texts
        common = max(map(len, texts)) - 1
        for other in others:
            common = min(common, _common_end(first, other))
        common = min(common, len(first))
        while common > 0 and (arena, first[len(first) - common]) in self._joined:
            common -= 1
        rest = first[len(first) - common :]
        return tuple(sorted({text[: len(text) - common] for text in texts})), rest

    def _join(self, frame: int) -> None:
        """Never split a frame off again: it can begin with what may come before it."""
        arena, choice = self._entry(frame)
        self._joined.update((arena, text[0]) for text in choice if text)
        for head in self._pushers.pop(frame, ()):
            if head in self._partial:
                self.moves[head] = MISS, -1
                self._changed(head)
            else:
                self._write(head)

    # -- places -------------------------------------------------------------------------------------------------

    def place(self, arena: Arena, node: int) -> Place | None:
        """Where a text stands whose state is `node`; None where there is no room or the stack would be too deep."""
        choice, rest = self._split(arena, _texts(arena, node))
        frames: list[int] = []
        end = len(rest)
        for k in range(len(rest) - 1, -1, -1):
            if k == 0 or (arena, rest[k]) not in self._joined:
                frames.append(self.number(arena, (rest[k:end],)))
                end = k
        head = self.number(arena, choice)
        return None if MISS in (head, *frames) or len(frames) > self.depth else Place(head, tuple(frames))

    def follow(self, place: Place, symbols: Iterable[int]) -> Place | None:
        """The place after `symbols`, expanding what is missing; None if they are not allowed or the device could not go there."""
        head, frames = place.head, list(place.frames)
        for symbol in symbols:
            while True:
                following, pushed = self._moved(head, symbol)
                if following != DEAD or not self.nullable[head] or not frames:
                    break
                head = frames.pop()
            if following < 0 or (self.nullable[head] and not self._is_alone(frames, symbol)):
                return None
            head = following
            if pushed >= 0:
                frames.append(pushed)
                if len(frames) > self.depth:
                    return None
        return Place(head, tuple(frames))

    def _moved(self, head: int, symbol: int) -> tuple[int, int]:
        """A head's move, made if need be."""
        self.expand(head)
        if head in self._partial and self.moves[head, symbol, 0] == MISS and not self.is_full:
            self._write_one(head, symbol)
        following, pushed = self.moves[head, symbol].tolist()
        return following, pushed

    def _is_alone(self, frames: Sequence[int], symbol: int) -> bool:
        """Can no frame that may come now read the symbol, beside a head that does?"""
        for frame in reversed(frames):
            if self._moved(frame, symbol)[0] != DEAD:
                self._join(frame)
                return False
            if not self.nullable[frame]:
                break
        return True

    def know(self, place: Place, arena: Arena, node: int) -> int:
        """Note the mask of a place, whose state is `node`; the row of the bank, or MISS where there is no room."""
        slot = self._slot(key_of(place))
        if self.keys[slot]:
            return int(self.row_of[slot])
        if 2 * self._known >= len(self.keys):
            self.is_full = True
            return MISS
        row = self._row(arena.mask(node))
        if row >= 0:
            self.keys[slot], self.row_of[slot] = key_of(place), row
            self._known += 1
            self.changes.keys.append(slot)
        return row

    def knows(self, place: Place) -> bool:
        """Has a place's mask been noted?"""
        return bool(self.keys[self._slot(key_of(place))])

    def _slot(self, key: int) -> int:
        """Where the map has `key`, or the free slot where it belongs."""
        slot = (key >> 3) & (len(self.keys) - 1)
        while self.keys[slot] not in (0, key):
            slot = (slot + 1) & (len(self.keys) - 1)
        return slot

    def _row(self, mask: np.ndarray) -> int:
        digest = hashlib.blake2b(mask.tobytes(), digest_size=16).digest()
        row = self._rows.get(digest)
        if row is None:
            row = len(self._rows)
            if row == len(self.bank):
                self.is_full = True
                return MISS
            self._rows[digest], self.bank[row] = row, mask
            self.changes.rows.append(row)
        return row

    # -- ahead of the device ------------------------------------------------------------------------------------

    def state_after(self, arena: Arena, node: int, symbol: int) -> int:
        """A node's successor by a symbol, 0 if it is not allowed."""
        return arena.advance_bytes(node, bytes([symbol])) if symbol < 256 else arena.advance_token(node, self.vocabulary.symbol_tokens[symbol - 256])

    def usual_symbol(self, head: int) -> int | None:
        """A byte that leads where most bytes lead from a head; None where few bytes lead anywhere."""
        self.expand(head)
        reading = np.flatnonzero(self.moves[head, :256, 0] >= 0)
        _, firsts, counts = np.unique(self.moves[head, reading, 0], return_index=True, return_counts=True)
        return int(reading[firsts[counts.argmax()]]) if counts.max(initial=0) >= USUAL else None

    def symbols(self, place: Place) -> list[int]:
        """One symbol for each way on from a place, its head expanded; none where a name that is not declared is being read, each of which is a way."""
        head, frames, found = place.head, list(place.frames), dict[tuple[int, int, int], int]()
        while True:
            self.expand(head)
            if head in self._partial:
                return []
            going = np.flatnonzero(self.moves[head, :, 0] >= 0)
            _, firsts = np.unique(self.moves[head, going, 0], return_index=True)
            for symbol in going[firsts].tolist():
                found.setdefault((head, *self.moves[head, symbol].tolist()), symbol)
            if not self.nullable[head] or not frames:
                return sorted(set(found.values()))
            head = frames.pop()

    def expand_near(self, place: Place, count: int) -> None:
        """Expand up to `count` heads, those that are reached first from a place."""
        todo, seen = deque([place.head, *reversed(place.frames)]), {OVER}
        while todo and count > 0 and not self.is_full:
            head = todo.popleft()
            if head in seen:
                continue
            seen.add(head)
            if head not in self._expanded:
                self.expand(head)
                count -= 1
            todo.extend(following for following in self._around(head) if following not in seen)

    def _around(self, head: int) -> list[int]:
        """Heads and frames that a head's row leads to."""
        around = self._leads_to.get(head)
        if around is None:
            around = self._leads_to[head] = [following for following in np.unique(self.moves[head]).tolist() if following > 0]
        return around

    def _changed(self, head: int) -> None:
        """A head's row is another one now."""
        self.changes.heads.add(head)
        self._leads_to.pop(head, None)

    def take_changes(self) -> Changes:
        """What is to be handed over now."""
        changes, self.changes = self.changes, Changes()
        return changes


def _texts(arena: Arena, node: int) -> list[Text]:
    """A node as texts: those of a choice that all end alike, else one."""
    choices = arena.choices(node)
    if 1 < len(choices) <= TEXTS:
        texts = [arena.sequence(choice) for choice in choices]
        if all(texts) and all(text[-1] == texts[0][-1] for text in texts):
            return texts
    return [arena.sequence(node)]


def _common_end(a: Text, b: Text) -> int:
    """How many nodes at their ends are the same."""
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count


def token_symbols(vocabulary: Vocabulary, token: int) -> tuple[int, ...]:
    """The symbols that a token writes: its bytes, or one symbol for a special token; () for what a grammar never reads."""
    data = vocabulary.text_of(token)
    if data:
        return tuple(data)
    specials = vocabulary.symbol_tokens
    return (256 + specials.index(token),) if token in specials[:SPECIALS] else ()
