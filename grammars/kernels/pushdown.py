"""Grammars followed on a GPU: the mask of where each text stands, and where it stands after a token.

Inputs: a Pushdown's Tables and the States of a batch. A lane reads the symbols of one token; what it pushes and pops stays in
registers (LOCAL frames of 21 bits in two integers) above the request's stack, which it only reads, so that all tokens of the
vocabulary can be tried at once from one place. Tokens are tried in the order of their bytes: neighbours fail together. What the
tables do not say is a miss: it is flagged, and nothing else is changed. Knows nothing of sampling or models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.grammars.device import SPECIALS, SYMBOLS
from agentkit.grammars.kernels.tables import LOCAL, States, Tables

__all__ = ["advance", "build_rows", "find_rows"]

TOKENS = 512  # tokens that a program tries at once

_SYMBOLS: tl.constexpr = tl.constexpr(SYMBOLS)
_SPECIALS: tl.constexpr = tl.constexpr(SPECIALS)
_LOCAL: tl.constexpr = tl.constexpr(LOCAL)
_FRAME: tl.constexpr = tl.constexpr((1 << 21) - 1)
_DEAD: tl.constexpr = tl.constexpr(-1)
_MISS: tl.constexpr = tl.constexpr(-2)


@triton.jit
def _mixed(value):
    """place._mixed: splitmix64 with arithmetic shifts."""
    value = (value ^ (value >> 30)) * -4658895280553007687
    value = (value ^ (value >> 27)) * -7723592293110705685
    return value ^ (value >> 31)


@triton.jit
def _frame(j, low, high, count, stack, depth, there):
    """The frame j places below the top: in registers, else in the request's stack."""
    near = tl.where(j < 3, low >> (21 * tl.minimum(j, 2)).to(tl.int64), high >> (21 * tl.minimum(tl.maximum(j - 3, 0), 2)).to(tl.int64))
    far = tl.load(stack + depth - 1 - (j - count), mask=there & (j >= count), other=0)
    return tl.where(j < count, (near & _FRAME).to(tl.int32), far)


@triton.jit
def _is_alone(moves, nullable, symbol, low, high, count, stack, depth, ask):
    """Where `ask`: can no frame that may come now read the symbol?"""
    j, alone = tl.zeros_like(symbol), symbol == symbol
    while tl.max(ask.to(tl.int32), 0) > 0:
        frame = _frame(j, low, high, count, stack, depth, ask)
        dead = tl.load(moves + 2 * (frame * _SYMBOLS + symbol), mask=ask, other=_DEAD) == _DEAD
        over = tl.load(nullable + frame, mask=ask, other=0) != 0
        alone = alone & (dead | (ask == 0))
        j += 1
        ask = ask & dead & over & (j < count + depth)
    return alone


@triton.jit
def _read(moves, nullable, symbols, head, stack, depth, room, at, end, live):
    """Reads symbols[at : end] in each live lane. Which lanes could, which missed, and the head, local frames and depth of the stack after."""
    low, high, count = tl.zeros_like(at).to(tl.int64), tl.zeros_like(at).to(tl.int64), tl.zeros_like(at)
    missed = at < 0
    going = live & (at < end)
    while tl.max(going.to(tl.int32), 0) > 0:
        symbol = tl.load(symbols + at, mask=going, other=0)
        move = moves + 2 * (head * _SYMBOLS + symbol)
        following, pushed = tl.load(move, mask=going, other=_DEAD), tl.load(move + 1, mask=going, other=-1)
        leaves = going & (tl.load(nullable + head, mask=going, other=0) != 0) & (count + depth > 0)
        alone = _is_alone(moves, nullable, symbol, low, high, count, stack, depth, leaves & (following >= 0))
        pops, reads = leaves & (following == _DEAD), going & (following >= 0) & alone
        pushes = reads & (pushed >= 0)
        full = pushes & ((count == _LOCAL) | (count + depth >= room))
        missed = missed | (going & ((following == _MISS) | (alone == 0) | full))
        below = _frame(tl.zeros_like(at), low, high, count, stack, depth, pops)
        head = tl.where(pops, below, tl.where(reads, following, head))
        local = pops & (count > 0)
        depth -= (pops & (count == 0)).to(tl.int32)
        count += pushes.to(tl.int32) - local.to(tl.int32)
        grown_high, grown_low = (high << 21) | (low >> 42), ((low << 21) & 0x7FFFFFFFFFFFFFFF) | tl.maximum(pushed, 0).to(tl.int64)
        shrunk_low, shrunk_high = (low >> 21) | ((high & _FRAME) << 42), high >> 21
        low, high = tl.where(pushes, grown_low, tl.where(local, shrunk_low, low)), tl.where(pushes, grown_high, tl.where(local, shrunk_high, high))
        at += reads.to(tl.int32)
        live = live & (pops | reads | (going == 0)) & (missed == 0)
        going = live & (at < end)
    return live, missed, head, low, high, count, depth


@triton.jit
def _accepts(nullable, head, stack, depth, DEPTH: tl.constexpr):
    """May the text end in this place?"""
    j = tl.arange(0, DEPTH)
    frame = tl.load(stack + j, mask=j < depth, other=0)
    return (tl.load(nullable + head) != 0) & (tl.min(tl.load(nullable + frame, mask=j < depth, other=1), 0) != 0)


@triton.jit(do_not_specialize_on_alignment=["heads", "depths", "status", "rows"])
def _find_rows(heads, depths, stacks, room, status, keys, slots, row_of, bank, words, first, rows, DEPTH: tl.constexpr, WORDS: tl.constexpr):
    b, j = tl.program_id(0), tl.arange(0, DEPTH)
    head, depth = tl.load(heads + b), tl.load(depths + b)
    row = tl.full((), -1, tl.int32)
    if (tl.load(status + b) == 0) & (head >= 0):
        frame = tl.load(stacks + b * room + j, mask=j < depth, other=0).to(tl.int64)
        key = _mixed(head.to(tl.int64) + 1) + tl.sum(tl.where(j < depth, _mixed((frame + 1) * 4294967296 + j), 0), 0)
        key = tl.where(key == 0, tl.full((), 1, tl.int64), key)
        slot = (key >> 3) & (slots - 1)
        there = tl.load(keys + slot)
        while (there != 0) & (there != key):
            slot = (slot + 1) & (slots - 1)
            there = tl.load(keys + slot)
        row = tl.where(there == 0, first + b, tl.load(row_of + slot))
        if there == 0:
            for start in range(0, words, WORDS):
                w = start + tl.arange(0, WORDS)
                tl.store(bank + (first + b).to(tl.int64) * words + w, tl.zeros((WORDS,), tl.int32), mask=w < words)
    tl.store(rows + b, row)


@triton.jit(do_not_specialize_on_alignment=["heads", "depths", "status", "rows"])
def _build_rows(
    moves, nullable, symbols, starts, order, count, text, specials, stops, heads, depths, stacks, room, status, bank, words, first, rows,
    DEPTH: tl.constexpr, STOPS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    b, lane = tl.program_id(0), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    row = tl.load(rows + b)
    if row >= first:
        stack, depth, head = stacks + b * room, tl.load(depths + b), tl.load(heads + b)
        bits = bank + row.to(tl.int64) * words
        special = lane - count
        token = tl.load(order + lane, mask=lane < count, other=-1)
        token = tl.maximum(token, tl.load(specials + 1 + special, mask=(special >= 0) & (special < _SPECIALS), other=-1))
        at = tl.where(lane < count, tl.load(starts + token, mask=lane < count, other=0), text + special)
        end = tl.where(lane < count, tl.load(starts + token + 1, mask=lane < count, other=0), at + 1)
        heads_of = tl.zeros((TOKENS,), tl.int32) + head
        depths_of = tl.zeros((TOKENS,), tl.int32) + depth
        allowed, missed, _, _, _, _, _ = _read(moves, nullable, symbols, heads_of, stack, depths_of, room, at, end, token >= 0)
        tl.atomic_or(bits + (token >> 5), tl.full((TOKENS,), 1, tl.int32) << (token & 31), mask=allowed)
        if tl.max(missed.to(tl.int32), 0) > 0:
            tl.store(status + b, 64)
        if tl.program_id(1) == 0:
            stop = tl.load(stops + tl.arange(0, STOPS))
            if _accepts(nullable, head, stack, depth, DEPTH):
                tl.atomic_or(bits + (stop >> 5), tl.full((STOPS,), 1, tl.int32) << (stop & 31), mask=stop >= 0)
            if tl.load(specials) > _SPECIALS:
                tl.store(status + b, 64)


@triton.jit(do_not_specialize_on_alignment=["heads", "depths", "status", "tokens"])
def _advance(
    moves, nullable, symbols, starts, text, specials, stops, heads, depths, stacks, room, status, tokens,
    DEPTH: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    if tl.load(status + b) == 0:
        stack, depth, head, token = stacks + b * room, tl.load(depths + b), tl.load(heads + b), tl.load(tokens + b).to(tl.int32)
        stopped = tl.max((tl.load(stops + tl.arange(0, STOPS)) == token).to(tl.int32), 0) > 0
        if stopped:
            may = tl.full((), 1, tl.int1)
            if head >= 0:
                may = _accepts(nullable, head, stack, depth, DEPTH)
            tl.store(status + b, tl.where(may, 65, 66))
        elif head >= 0:
            one = tl.arange(0, 1)
            known = tl.load(specials + 1 + tl.arange(0, _SPECIALS)) == token
            symbol = tl.max(tl.where(known, tl.arange(0, _SPECIALS), -1), 0)
            begin, stop = tl.load(starts + token), tl.load(starts + token + 1)
            at = tl.where(begin < stop, begin, text + tl.maximum(symbol, 0)) + one
            end = tl.where(begin < stop, stop, text + tl.maximum(symbol, 0) + (symbol >= 0).to(tl.int32)) + one
            heads_of, depths_of = tl.zeros((1,), tl.int32) + head, tl.zeros((1,), tl.int32) + depth
            read, _, after, low, high, count, below = _read(moves, nullable, symbols, heads_of, stack, depths_of, room, at, end, at < end)
            tl.debug_barrier()  # the stack has been read
            for j in tl.static_range(_LOCAL):
                frame = _frame(tl.zeros((1,), tl.int32) + j, low, high, count, stack, below, one < 0)
                tl.store(stack + below + count - 1 - j, frame, mask=read & (j < count))
            tl.store(heads + b + one, after, mask=read)
            tl.store(depths + b + one, below + count, mask=read)
            tl.store(status + b + one, tl.zeros((1,), tl.int32) + 66, mask=read == 0)


def find_rows(tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor) -> None:
    """rows [B] int32: the bank row of each request's mask; NO_ROW without a grammar or where status is not FINE. A mask that is not
    known gets the request's own row, cleared, for `build_rows`.
    """
    depth, words = states.stacks.shape[1], tables.bank.shape[1]
    _find_rows[(rows.numel(),)](
        states.heads, states.depths, states.stacks, depth, status, tables.keys, tables.keys.numel(), tables.row_of, tables.bank, words,
        tables.rows, rows, DEPTH=triton.next_power_of_2(depth), WORDS=1024,
    )  # fmt: skip


def build_rows(tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor, *, block: int = TOKENS) -> None:
    """Makes the masks that `find_rows` did not find; status is MISSED where the tables do not reach far enough."""
    depth, words, count = states.stacks.shape[1], tables.bank.shape[1], tables.order.numel()
    _build_rows[(rows.numel(), triton.cdiv(count + SPECIALS, block))](
        tables.moves, tables.nullable, tables.symbols, tables.starts, tables.order, count, tables.symbols.numel() - SPECIALS, tables.specials,
        tables.stops, states.heads, states.depths, states.stacks, depth, status, tables.bank, words, tables.rows, rows,
        DEPTH=triton.next_power_of_2(depth), STOPS=tables.stops.numel(), TOKENS=block,
    )  # fmt: skip


def advance(tables: Tables, states: States, status: torch.Tensor, tokens: torch.Tensor) -> None:
    """Moves each request whose status is FINE over its token, in place. After it STOPPED for a stop token; LOST, and the state as it was,
    where the tables do not say where it leads. tokens [B].
    """
    depth = states.stacks.shape[1]
    _advance[(tokens.numel(),)](
        tables.moves, tables.nullable, tables.symbols, tables.starts, tables.symbols.numel() - SPECIALS, tables.specials, tables.stops,
        states.heads, states.depths, states.stacks, depth, status, tokens,
        DEPTH=triton.next_power_of_2(depth), STOPS=tables.stops.numel(), num_warps=1,
    )  # fmt: skip
