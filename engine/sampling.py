"""From one row of logits and one mask row to one token.

Inputs: logits float32 [V] on the host, a packed mask (uint32 [ceil(width/32)], bit i%32 of word i//32 = token i) or None,
and SamplingParams. Order: penalties, mask, temperature, top-k, top-p, min-p, draw. V may be wider than the vocabulary
(padding columns are never chosen) and the mask wider than V. Randomness is a function of (seed, position) alone, so a
request's stream depends on nothing beside it, and no global generator is read or moved.
This module knows nothing of requests, grammars or torch.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from agentkit.engine.config import SamplingParams
from agentkit.errors import NumericalError

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

_WORD = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def philox(seed: int, position: int, stream: int = 0) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011): four 32-bit words for key `seed` and counter (position, stream), both 64-bit."""
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    c0, c1, c2, c3 = position & _WORD, (position >> 32) & _WORD, stream & _WORD, (stream >> 32) & _WORD
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _W0) & _WORD, (k1 + _W1) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, for the token at `position` of the request with this seed."""
    a, b, _, _ = philox(seed, position)
    return ((a >> 5) * 67108864 + (b >> 6)) / 9007199254740992.0


def unpack_mask(mask: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.bool_]:
    """Packed uint32 mask row -> bool [width]; columns beyond the row are not allowed. 49k columns take about 10 us."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    if bits.size < width:
        bits = np.concatenate([bits, np.zeros(width - bits.size, np.uint8)])
    return bits[:width].view(np.bool_)


def check_finite(logits: Floats) -> None:
    """Raises NumericalError if a row has NaN or +inf, or nothing but -inf."""
    top = logits.max() if logits.size else np.float32(np.nan)
    if not np.isfinite(top):
        what = "NaN" if np.isnan(top) else "+inf" if top > 0 else "only -inf"
        raise NumericalError(f"the model's logits contain {what}; the weights or their precision are at fault (try weights='fp32')")


def penalise(logits: Floats, seen: Collection[int], penalty: float) -> Floats:
    """Repetition penalty on a copy: positive logits divided, negative ones multiplied; -inf stays -inf."""
    out = logits.copy()
    ids = np.fromiter(set(seen), np.int64)
    ids = ids[ids < out.size]
    values = out[ids]
    out[ids] = np.where(values > 0, values / penalty, values * penalty)
    return out


def _allowed_ids(mask: npt.NDArray[np.uint32] | None, width: int, vocab_size: int) -> Ids:
    size = min(width, vocab_size)
    ids = np.arange(size) if mask is None else np.flatnonzero(unpack_mask(mask, size))
    if not ids.size:
        raise NumericalError("the mask leaves no token to sample; the grammar is stuck, or its vocabulary is not that of the model")
    return ids


def sample(
    logits: Floats,
    mask: npt.NDArray[np.uint32] | None,
    params: SamplingParams,
    *,
    vocab_size: int,
    seed: int = 0,
    position: int = 0,
    seen: Collection[int] = (),
) -> int:
    """One token id.

    logits: float32 [V], one row.   vocab_size: ids from here on are padding.   seen: ids for the repetition penalty.
    seed, position: the request's seed (any 64-bit integer) and the index of the token in its output.

    Raises NumericalError if the row has NaN or +inf, or the mask leaves nothing with a finite logit.
    """
    check_finite(logits)
    if params.repetition_penalty != 1.0 and seen:
        logits = penalise(logits, seen, params.repetition_penalty)
    if mask is None and params.greedy:
        return int(logits[:vocab_size].argmax())
    ids = _allowed_ids(mask, logits.size, vocab_size)
    kept = logits[ids]
    best = int(kept.argmax())  # the first of equals, and ids are ascending: the lowest id
    if kept[best] == -np.inf:
        raise NumericalError("every token that the mask allows has a logit of -inf; nothing can be sampled")
    if params.greedy or ids.size == 1:
        return int(ids[best])
    return _draw(ids, kept.astype(np.float64), params, uniform(seed, position))


def _draw(ids: Ids, logits: npt.NDArray[np.float64], params: SamplingParams, u: float) -> int:
    """Truncates the distribution over `ids` as told and inverts its cumulative sum at `u` in [0, 1)."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    if 0 < params.top_k < ids.size or params.top_p < 1.0:
        order = np.argsort(-weights, kind="stable")  # ties: the lower id first
        if 0 < params.top_k < order.size:
            order = order[: params.top_k]
        if params.top_p < 1.0:
            cumulative = np.cumsum(weights[order])
            order = order[: int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1]
        order = np.sort(order)
        ids, weights = ids[order], weights[order]
    if params.min_p > 0.0:
        keep = weights >= params.min_p * weights.max()
        ids, weights = ids[keep], weights[keep]
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(ids[min(at, ids.size - 1)])
