"""Keys and values of running and recently finished requests, in one contiguous arena per request.

Inputs: the model's KV shape, a budget in bytes, token ids. A sequence is appended to in place (never gathered or copied
per step), can be truncated and forked, and when its request is over it may be kept: a new prompt that begins with the
same token ids (compared one by one, no hashes) takes over or copies what is already computed. Paging will replace the
arenas behind the same two classes. This module knows nothing of models, requests or attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

ROUND = 64  # tokens; capacities are multiples of it
SPARE_ARENAS = 2  # freed arenas kept for the next allocation: fresh memory costs a page fault per 4 kB
TAKEOVER_LOSS = 32  # a kept sequence is taken over rather than copied if at most 1/32 of what is shared gets lost


@dataclass(frozen=True)
class KVShape:
    """layers, kv_heads, head_dim of the model; dtype and device of the arenas."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVSequence:
    """Keys and values of the tokens `tokens`, positions 0, 1, ...; made by KVPool only."""

    def __init__(self, arena: torch.Tensor, tokens: list[int]) -> None:
        self._arena = arena  # [L, 2, KV, capacity, D]
        self.tokens = tokens

    @property
    def length(self) -> int:
        """Tokens whose keys and values are complete in every layer."""
        return len(self.tokens)

    @property
    def capacity(self) -> int:
        return self._arena.shape[3]

    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores keys and values [T, KV, D] of positions start .. start+T in one layer; `commit` makes them count."""
        end = start + keys.shape[0]
        if end > self.capacity:
            raise IndexError(f"positions {start}..{end} do not fit into an arena of {self.capacity} tokens")
        target = self._arena[layer, :, :, start:end]
        target[0].copy_(keys.transpose(0, 1))
        target[1].copy_(values.transpose(0, 1))

    def view(self, layer: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [KV, end-start, D] of one layer: views, not copies."""
        part = self._arena[layer, :, :, start:end]
        return part[0], part[1]

    def commit(self, token_ids: Sequence[int]) -> None:
        """The next len(token_ids) positions have been written in every layer, for these tokens."""
        if self.length + len(token_ids) > self.capacity:
            raise IndexError(f"{len(token_ids)} tokens after {self.length} do not fit into an arena of {self.capacity} tokens")
        self.tokens.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        if not 0 <= length <= self.length:
            raise IndexError(f"cannot truncate a sequence of {self.length} tokens to {length}")
        del self.tokens[length:]


class KVPool:
    """All arenas of one engine; used by the engine thread only.

    budget: bytes for live, kept and spare arenas together.   kept: finished sequences to hold on to, at most.
    """

    def __init__(self, shape: KVShape, budget: int, kept: int) -> None:
        self.shape = shape
        self.budget = budget
        self._kept_limit = kept
        self._live: list[KVSequence] = []
        self._kept: list[KVSequence] = []  # the least recently used first
        self._spare: list[torch.Tensor] = []

    def size(self, tokens: int) -> int:
        """Bytes of the smallest arena for `tokens` tokens."""
        return -(-tokens // ROUND) * ROUND * self.shape.bytes_per_token

    @property
    def live_bytes(self) -> int:
        return sum(s.capacity for s in self._live) * self.shape.bytes_per_token

    @property
    def used_bytes(self) -> int:
        idle = sum(s.capacity for s in self._kept) + sum(a.shape[3] for a in self._spare)
        return self.live_bytes + idle * self.shape.bytes_per_token

    @property
    def live_sequences(self) -> int:
        return len(self._live)

    @property
    def kept_sequences(self) -> int:
        return len(self._kept)

    def can_hold(self, capacity: int) -> bool:
        """Whether `acquire` would succeed now; kept and spare arenas give way."""
        return self.live_bytes + self.size(capacity) <= self.budget

    def acquire(self, token_ids: Sequence[int], capacity: int) -> KVSequence:
        """A sequence for `capacity` tokens whose `tokens` are the longest computed beginning of `token_ids`.

        At least the last of `token_ids` is left to compute, so that it yields logits.
        Raises MemoryError if the budget does not allow it (see `can_hold`).
        """
        if not self.can_hold(capacity):
            raise MemoryError(f"{capacity} tokens of keys and values do not fit: {self.live_bytes} of {self.budget} bytes are in use")
        source, shared = self._longest_match(list(token_ids[:-1]))
        if source is None or source in self._live:
            return self._copy(source, shared, capacity)
        spendable = (source.length - shared) * TAKEOVER_LOSS <= shared
        both_fit = self.live_bytes + self._bytes(source) + self.size(capacity) <= self.budget
        if source.capacity >= capacity and (spendable or not both_fit) and self.live_bytes + self._bytes(source) <= self.budget:
            self._kept.remove(source)
            self._live.append(source)
            source.truncate(shared)
            return source
        if not both_fit:
            return self._copy(None, 0, capacity)
        copy = self._copy(source, shared, capacity)
        self._kept.remove(source)
        if spendable:
            self._retire(source)
        else:
            self._kept.append(source)  # now the most recently used
        return copy

    def fork(self, sequence: KVSequence, length: int, capacity: int) -> KVSequence:
        """A second sequence with the first `length` tokens of `sequence`. Raises MemoryError if the budget does not allow it."""
        if not self.can_hold(capacity):
            raise MemoryError(f"{capacity} tokens of keys and values do not fit: {self.live_bytes} of {self.budget} bytes are in use")
        return self._copy(sequence, length, capacity)

    def release(self, sequence: KVSequence, *, keep: bool = True) -> None:
        """Ends a live sequence. `keep`: hold on to it for prompts to come, as long as the limits allow."""
        self._live.remove(sequence)
        if not keep or not self._kept_limit or not sequence.length:
            self._retire(sequence)
            return
        for covered in [s for s in self._kept if self._covers(sequence, s)]:
            self._kept.remove(covered)
            self._retire(covered)
        self._kept.append(sequence)
        while len(self._kept) > self._kept_limit:
            self._retire(self._kept.pop(0))

    def clear(self) -> None:
        """Forgets kept sequences and spare arenas."""
        self._kept.clear()
        self._spare.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError if an arena has two owners, a length exceeds its capacity, or a limit is passed."""
        arenas = [s._arena for s in self._live + self._kept] + self._spare
        assert len({a.data_ptr() for a in arenas}) == len(arenas), "an arena has two owners"
        for s in self._live + self._kept:
            assert s.length <= s.capacity, f"{s.length} tokens in an arena of {s.capacity}"
        assert all(s.length for s in self._kept), "an empty sequence is kept"
        assert self.used_bytes <= self.budget, f"{self.used_bytes} bytes in use, {self.budget} allowed"
        assert len(self._kept) <= self._kept_limit, f"{len(self._kept)} sequences kept, {self._kept_limit} allowed"
        assert len(self._spare) <= SPARE_ARENAS, f"{len(self._spare)} spare arenas"

    def _longest_match(self, token_ids: list[int]) -> tuple[KVSequence | None, int]:
        best: KVSequence | None = None
        length = 0
        for candidate in (*self._live, *self._kept):
            shared = common_prefix(candidate.tokens, token_ids)
            if shared > length or (shared == length and shared and candidate in self._kept):
                best, length = candidate, shared
        return best, length

    def _bytes(self, sequence: KVSequence) -> int:
        return sequence.capacity * self.shape.bytes_per_token

    def _copy(self, source: KVSequence | None, length: int, capacity: int) -> KVSequence:
        """A new live sequence that begins with the first `length` tokens of `source`, which is not evicted for it."""
        arena = self._allocate(capacity, source)
        sequence = KVSequence(arena, [])
        if source is not None and length:
            arena[:, :, :, :length].copy_(source._arena[:, :, :, :length])
            sequence.commit(source.tokens[:length])
        self._live.append(sequence)
        return sequence

    def _allocate(self, capacity: int, protect: KVSequence | None) -> torch.Tensor:
        """An arena for `capacity` tokens, a power of two where the budget has room (pages are only touched when written)."""
        exact = -(-capacity // ROUND) * ROUND
        for i, arena in enumerate(self._spare):
            if exact <= arena.shape[3] <= 4 * exact:
                return self._spare.pop(i)
        roomy = max(4 * ROUND, 1 << (capacity - 1).bit_length())
        size = roomy if self.used_bytes + roomy * self.shape.bytes_per_token <= self.budget else exact
        self._make_room(size * self.shape.bytes_per_token, protect)
        s = self.shape
        return torch.empty(s.layers, 2, s.kv_heads, size, s.head_dim, dtype=s.dtype, device=s.device)

    def _make_room(self, need: int, protect: KVSequence | None) -> None:
        """Drops spare arenas, then the least recently used kept sequences, until `need` bytes are free."""
        while self.used_bytes + need > self.budget and self._spare:
            self._spare.pop()
        while self.used_bytes + need > self.budget:
            self._kept.remove(next(s for s in self._kept if s is not protect))

    def _retire(self, sequence: KVSequence) -> None:
        """The arena of a sequence that is in no list any more."""
        if len(self._spare) < SPARE_ARENAS:
            self._spare.append(sequence._arena)

    @staticmethod
    def _covers(new: KVSequence, old: KVSequence) -> bool:
        """Whether `old` holds nothing that `new` does not."""
        return old.length <= new.length and new.tokens[: old.length] == old.tokens


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common beginning, by halving with slice comparisons (fast in C, and exact)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
