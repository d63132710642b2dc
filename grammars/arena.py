"""An arena: everything that grammars have reached so far for one vocabulary, in flat arrays that the kernels read.

Owns the node array (layout in core/layout.py) and the bank of mask rows, enlarges them when a kernel says that a
section is full, and turns a kernel's refusal into a typed error. One lock guards all of it: kernels release the GIL.
Knows nothing of front ends or matchers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.errors import GrammarError, GrammarTooComplex, NoTokenPath
from agentkit.grammars.bank import Bank
from agentkit.grammars.core import kernels, layout
from agentkit.grammars.core.guard import guarded_row
from agentkit.grammars.core.lower import lower
from agentkit.grammars.core.rows import mask_row
from agentkit.grammars.core.witness import fits, shortest_text, tokens_needed
from agentkit.grammars.expr import Program
from agentkit.grammars.settings import settings

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Arena"]

Kernel = Callable[..., Any]

_START = {"nodes": 1 << 15, "memo": 1 << 16, "rows": 256, "scratch": 1 << 15, "pool": 1 << 18}
_FULL = {layout.FULL_NODES: "nodes", layout.FULL_MEMO: "memo", layout.FULL_ROWS: "rows", layout.FULL_SCRATCH: "scratch", layout.FULL_POOL: "pool"}
_COUNTS = [layout.H_NODE_COUNT, layout.H_ROW_COUNT, layout.H_POOL_COUNT, layout.H_EPOCH, layout.H_BANK_USED]
_MOVES = 1 << 15  # moves by a token that are remembered (some 5 MB)
_WORKSPACE = 1 << 30  # bytes of nodes and transitions that one arena may take


def _new_memory(caps: dict[str, int]) -> np.ndarray:
    """An empty arena array with the given capacities (nodes, memo entries, dense rows, scratch and pool integers)."""
    hash_size = 1 << (2 * caps["nodes"] - 1).bit_length()
    sizes = [layout.H_SIZE, caps["nodes"] * layout.STRIDE, hash_size, 3 * caps["memo"], 256 * caps["rows"], caps["scratch"], caps["pool"]]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    mem = np.zeros(starts[-1], np.int32)
    mem[layout.H_NODES], mem[layout.H_NODE_CAP] = starts[1], caps["nodes"]
    mem[layout.H_HASH], mem[layout.H_HASH_MASK] = starts[2], hash_size - 1
    mem[layout.H_MEMO], mem[layout.H_MEMO_MASK] = starts[3], caps["memo"] - 1
    mem[layout.H_ROWS], mem[layout.H_ROW_CAP] = starts[4], caps["rows"]
    mem[layout.H_SCRATCH], mem[layout.H_SCRATCH_CAP] = starts[5], caps["scratch"]
    mem[layout.H_POOL], mem[layout.H_POOL_CAP] = starts[6], caps["pool"]
    return mem


def _first_memory(caps: dict[str, int]) -> np.ndarray:
    """An arena array with the nodes that are always there."""
    mem = _new_memory(caps)
    for node, op, flags in (
        (layout.EPSILON, layout.A_EPSILON, layout.NULLABLE | layout.PLAIN),
        (layout.ALL, layout.A_NOT, layout.NULLABLE | layout.WIDE | layout.PLAIN | layout.ENDLESS),
        (layout.ANONYMOUS, layout.A_PATH, 0),
    ):
        at = mem[layout.H_NODES] + node * layout.STRIDE
        mem[at + layout.N_OP], mem[at + layout.N_FLAGS] = op, flags
    mem[mem[layout.H_NODES] + layout.ANONYMOUS * layout.STRIDE + layout.N_B] = 256
    mem[layout.H_NODE_COUNT], mem[layout.H_POOL_COUNT] = 4, 1
    return mem


def _sections(mem: np.ndarray) -> list[tuple[int, int]]:
    """Header slot and integers in use of the sections that say everything: the others can be made from them, or are scratch."""
    nodes, rows, pool = (int(mem[slot]) for slot in (layout.H_NODE_COUNT, layout.H_ROW_COUNT, layout.H_POOL_COUNT))
    return [(layout.H_NODES, layout.STRIDE * nodes), (layout.H_ROWS, 256 * rows), (layout.H_POOL, pool)]


class Arena:
    """States, transitions and mask rows for one vocabulary.

    rows: the bank of masks; its rows are shared by all states and grammars with equal ones.
    """

    def __init__(self, vocabulary: Vocabulary, template: Arena | None = None) -> None:
        self.vocabulary = vocabulary
        self.lock = threading.Lock()
        self.rows = Bank(vocabulary.words, settings.bank_bytes)
        self._voc = vocabulary.array
        self._caps: dict[str, int] = dict(_START) if template is None else dict(template._caps)
        self._roots: dict[tuple[bytes, bool], int] = {}
        self.forced: dict[tuple[Any, ...], list[int]] = {}
        """Forced tokens that have been asked for, by state and what is written before it."""
        self.completions: dict[int, int] = {}
        """Tokens of the shortest completion as the tokenizer splits it, for states that were asked for."""
        self._moves: dict[tuple[int, int], int] = {}  # (state, token) -> state after it: texts that are like earlier ones
        self._fixed: np.ndarray = np.zeros((0, vocabulary.words), np.uint32) if template is None else template._fixed
        self._mem: np.ndarray = _first_memory(self._caps) if template is None else template._mem.copy()

    @property
    def bank(self) -> np.ndarray:
        """All mask rows: uint32 [rows, ceil(width / 32)]."""
        return self.rows.rows

    @property
    def masks(self) -> dict[int, np.ndarray]:
        """Masks that have been asked for, by state: the short way for states seen before."""
        return self.rows.masks

    @property
    def nbytes(self) -> int:
        """Bytes that states, transitions and mask rows take."""
        return int(self._mem.nbytes + self.rows.rows.nbytes)

    @property
    def node_count(self) -> int:
        return int(self._mem[layout.H_NODE_COUNT])

    @property
    def row_count(self) -> int:
        """Rows of the bank in use."""
        return int(self._mem[layout.H_BANK_USED])

    def root(self, program: Program, *, every_byte: bool = False) -> int:
        """The state in which a program begins (0 if nothing matches it).

        Without `every_byte` the language is cut down to what the bytes that occur in some token can spell, so that no
        state is a dead end; with it bytes that no token has may still be fed to a matcher.
        """
        with self.lock:
            node = self._roots.get((program.digest, every_byte))
            if node is None:
                code, names = program.resolved(self.vocabulary.special_tokens)
                self._check_settlers(program)
                specials = np.array([-1 if name is None else self.vocabulary.special_symbol(name) for name in names], np.int64)
                count, rules = len(program.starts), len(program.rules)
                work = [np.zeros(n, np.int64) for n in (count, rules, rules, count, count)]
                parts = [part.astype(np.int64) for part in (code, program.starts, program.blob, program.rules)]
                voc = self.vocabulary.array_of_every_byte if every_byte else self._voc
                node = self._run(lower, voc, *parts, program.root, specials, *work)
                self._roots[program.digest, every_byte] = node
            return node

    def _check_settlers(self, program: Program) -> None:
        """After what a grammar looks ahead from, a byte must be writable that settles the matter; without it states might be dead ends."""
        alphabet = self._voc[self._voc[layout.V_ALPHABET] :]
        for settlers in program.settlers():
            if not any(int(alphabet[byte >> 5]) >> (byte & 31) & 1 for byte in settlers):
                raise GrammarError(f"no token of this vocabulary has any of the bytes {settlers!r}, which the grammar ignores and needs between its terminals")

    def mask_row_exists(self, state: int) -> bool:
        """Make the mask of `state`; is it more than empty?"""
        return bool(self.rows.rows[self.mask_row(state)].any())

    def stats(self) -> dict[str, int]:
        """Counts and bytes of what the arena holds; see Vocabulary.stats."""
        mem, rows = self._mem, self.rows
        return {
            "states": self.node_count,
            "transitions": int(mem[layout.H_MEMO_COUNT]),
            "mask_rows": self.row_count,
            "mask_bytes": self.row_count * 4 * self.vocabulary.words,
            "mask_hits": rows.hits,
            "mask_walks": rows.walks,
            "mask_rows_evicted": rows.evicted,
            "mask_sweeps": rows.sweeps,
            "state_bytes": 4 * (layout.STRIDE * self.node_count + int(mem[layout.H_POOL_COUNT]) + 3 * int(mem[layout.H_MEMO_COUNT])),
            "reserved_bytes": self.nbytes,
            "grammars": len(self._roots),
        }

    def advance_token(self, state: int, token: int) -> int:
        """State after a token, 0 if it is not allowed."""
        following = self._moves.get((state, token))
        if following is not None:
            return following
        with self.lock:
            if len(self._moves) >= _MOVES:
                self._moves.clear()
            following = kernels.advance_token(self._mem, self._voc, state, token)
            if following == 0 and self._mem[layout.H_STATUS]:
                following = self._run(kernels.advance_token, self._voc, state, token)
            following = self._moves[state, token] = int(following)
            return following

    def advance_bytes(self, state: int, data: bytes) -> int:
        with self.lock:
            return int(self._run(kernels.advance_bytes, state, np.frombuffer(data, np.uint8)))

    def successors(self, state: int) -> np.ndarray:
        """int32 [256]: the state after each byte, 0 where it is not allowed."""
        out = np.zeros(256, np.int32)
        with self.lock:
            self._run(kernels.successors, state, out)
        return out

    def is_in_undeclared_key(self, state: int) -> bool:
        """May an undeclared key be being read, or an item that must differ from others? Each text then is a state of its own."""
        return bool(self._mem[self._mem[layout.H_NODES] + state * layout.STRIDE + layout.N_FLAGS] & (layout.KEYED | layout.DISTINCT))

    def sequence(self, state: int) -> tuple[int, ...]:
        """What is read one after the other from here, each whatever follows it; () where nothing is left.

        What looks ahead does so up to the end of the text: from there on all is one.
        """
        items = []
        with self.lock:
            nodes = self._mem[self._mem[layout.H_NODES] :]
            while nodes[state * layout.STRIDE] == layout.A_SEQ:
                first, rest = nodes[state * layout.STRIDE + layout.N_A :][:2].tolist()
                if nodes[first * layout.STRIDE + layout.N_FLAGS] & layout.LOOKS:
                    break
                items.append(first)
                state = rest
        return tuple(items) if state == layout.EPSILON else (*items, state)

    def choices(self, state: int) -> tuple[int, ...]:
        """The states of which this one is a choice; itself where it is none."""
        with self.lock:
            op, at, count = self._mem[self._mem[layout.H_NODES] + state * layout.STRIDE :][:3].tolist()
            return tuple(self._mem[self._mem[layout.H_POOL] + at :][:count].tolist()) if op == layout.A_ALT else (state,)

    def mask_row(self, state: int) -> int:
        """Row of the bank that holds the mask of `state`."""
        with self.lock:
            while True:
                row = mask_row(self._mem, self._voc, self.rows.rows, self._fixed, self.rows.index, self.rows.work, state)
                if row >= 0:
                    return int(row)
                self._make_room()

    def mask(self, state: int, owner: object = None) -> np.ndarray:
        """Read-only view of the state's mask; it stays what it was even if the bank is enlarged or makes room.

        owner: the grammar that asks; as long as somebody holds it, its rows are the last to go.

        Raises:
            NoTokenPath: the mask is empty.
        """
        number = self.mask_row(state)
        with self.lock:
            rows = self.rows
            view = rows.view(number)
            if not view.any():
                raise NoTokenPath("the grammar can go on here, but no token of the vocabulary spells the bytes that it needs")
            rows.note(state, owner)
            rows.masks[state] = view
        return view

    def guarded(self, state: int, budget: int) -> np.ndarray:
        """Mask of the tokens after which at most budget - 1 more tokens complete the text; uint32 [words], own memory."""
        out = np.zeros(self.vocabulary.words, np.uint32)
        with self.lock:
            self._run(guarded_row, self._voc, out, state, budget)
        out &= self.mask(state)
        return out

    def is_accepting(self, state: int) -> bool:
        return bool(self._mem[self._mem[layout.H_NODES] + state * layout.STRIDE + layout.N_FLAGS] & layout.NULLABLE)

    def is_final(self, state: int) -> bool:
        """Must the text end here?"""
        return state == layout.EPSILON

    def fits(self, state: int, budget: int) -> bool:
        with self.lock:
            return bool(self._run(fits, self._voc, state, budget))

    def tokens_needed(self, state: int) -> int:
        """Tokens of the shortest completion by bytes; layout.INFINITE if no tokens spell it."""
        with self.lock:
            return int(self._run(tokens_needed, self._voc, state))

    def shortest_completion(self, state: int) -> np.ndarray:
        """Symbols of a shortest text that completes `state`: bytes, or 256 + k for special token k of the vocabulary. None may be longer than MAX_WITNESS."""
        out = np.empty(2 * self.bytes_needed(state) + 64, np.int32)
        with self.lock:
            count = self._run(shortest_text, self._voc, state, out)
        return out[:count]

    def bytes_needed(self, state: int) -> int:
        """Length of the shortest completion, a special token counting as one; layout.INFINITE if no tokens spell it."""
        if self.is_accepting(state):
            return 0
        if self.tokens_needed(state) >= layout.INFINITE:
            return layout.INFINITE
        with self.lock:  # the kernel has noted it down beside the node, or beside the rule that the node calls
            node = self._mem[self._mem[layout.H_NODES] + state * layout.STRIDE :]
            if node[layout.N_OP] == layout.A_CALL:
                return int(self._mem[self._mem[layout.H_POOL] + node[layout.N_A] + 2])
            return int(node[layout.N_NEED]) - 1

    def forced_bytes(self, state: int, limit: int = 4096) -> bytes:
        """The bytes that must follow here, as far as there is no choice; at most `limit`."""
        out = np.empty(limit, np.uint8)
        with self.lock:
            count = self._run(kernels.forced_bytes, self._voc, state, out)
        return out[:count].tobytes()

    def exercise(self) -> None:
        """Enlarge everything once, so that no kernel is left to be compiled in the middle of a text."""
        with self.lock:
            for section in _FULL.values():
                self._grow(section)
            self.rows.make_room(self._mem, settings.bank_bytes)
            kernels.settle(self._mem)
            self.rows.forget(self._mem)

    def settle(self) -> None:
        """Become an arena that others begin with: only what serves every grammar stays, and it changes no more."""
        with self.lock:
            self._fixed = self.rows.rows[: self.row_count].copy()
            kernels.settle(self._mem)
            self._caps["memo"] = _START["memo"]
            walked, self._mem = self._mem, _new_memory(self._caps)
            self._take_over(walked, memo=False)

    def packed(self) -> np.ndarray:
        """A settled arena as int32 [...]: capacities, counts, then what is in use of each section, and the rows of its runs."""
        mem = self._mem
        sections = [mem[mem[start] : mem[start] + size] for start, size in _sections(mem)]
        head = [*(self._caps[name] for name in _START), *mem[_COUNTS], len(self._fixed)]
        return np.concatenate([np.array(head, np.int32), *sections, self._fixed.view(np.int32).ravel()])

    @classmethod
    def unpacked(cls, vocabulary: Vocabulary, data: np.ndarray) -> Arena:
        """The settled arena that `packed` was called of, for an equal vocabulary."""
        arena = cls(vocabulary)
        at = len(_START) + len(_COUNTS) + 1
        arena._caps = dict(zip(_START, map(int, data), strict=False))
        mem = arena._mem = _new_memory(arena._caps)
        mem[_COUNTS] = data[len(_START) : at - 1]
        for start, size in _sections(mem):
            mem[mem[start] : mem[start] + size] = data[at : at + size]
            at += size
        kernels.rehash(mem, mem, 0)
        arena._fixed = data[at:].view(np.uint32).reshape(-1, vocabulary.words)
        return arena

    def _run(self, kernel: Kernel, *args: Any) -> int:
        while True:
            result = kernel(self._mem, *args)
            if not self._mem[layout.H_STATUS]:
                return int(result or 0)
            self._make_room()

    def _make_room(self) -> None:
        """Answer a kernel that stopped early: enlarge what was full, or raise."""
        mem = self._mem
        status = int(mem[layout.H_STATUS])
        mem[layout.H_STATUS] = mem[layout.H_DEPTH] = mem[layout.H_SCRATCH_TOP] = 0
        if status == layout.FULL_BANK:
            self.rows.make_room(mem, settings.bank_bytes)
        elif status in _FULL:
            self._grow(_FULL[status])
        elif status == layout.TOO_DEEP:
            raise GrammarTooComplex("nesting", "rules call each other too deeply before any text is read (a left-recursive rule?)")
        else:
            raise GrammarTooComplex("states", f"an intersection or complement has more than {layout.MAX_STATES} states")

    def _grow(self, section: str) -> None:
        old = self._mem
        caps = self._caps | {section: 2 * self._caps[section]}
        if old.nbytes > _WORKSPACE // 2:
            raise GrammarTooComplex("memory", f"the grammars of this vocabulary have reached {self.node_count} states")
        self._mem, self._caps = _new_memory(caps), caps
        self._take_over(old)

    def _take_over(self, old: np.ndarray, *, memo: bool = True) -> None:
        """Fill the empty array of this arena with what `old` holds."""
        new = self._mem
        new[_COUNTS] = old[_COUNTS]
        for start, size in _sections(old):
            new[new[start] : new[start] + size] = old[old[start] : old[start] + size]
        kernels.rehash(old, new, int(memo))
