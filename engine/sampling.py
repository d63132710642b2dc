"""From one row of logits and one mask row to one token.

Inputs: logits float32 [V] on the host, a packed mask (uint32 [ceil(width/32)], bit i%32 of word i//32 = token i) or None,
and SamplingParams. Order: penalties and biases, mask, temperature, top-k, top-p, min-p, draw. V may be wider than the vocabulary
(padding columns are never chosen) and the mask wider than V. Randomness is a function of (seed, position) alone, so a
request's stream depends on nothing beside it, and no global generator is read or moved.
This module knows nothing of requests, grammars or torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from agentkit.engine.config import SamplingParams
from agentkit.errors import NumericalError

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

NUCLEUS = 512
"""How many of the likeliest tokens top-p looks at first; more only when they do not hold the mass."""

FEW_WORDS = 8
"""Of how many words of a mask at most one has bits where only the allowed logits are looked at, not all of the row."""

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


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) with 53 random bits, for the token at `position` of the request with this seed."""
    a, b, _, _ = philox(seed, position, stream)
    return ((a >> 5) * 67108864 + (b >> 6)) / 9007199254740992.0


def unpack_mask(mask: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.bool_]:
    """Packed uint32 mask row -> bool [width]; columns beyond the row are not allowed. 49k columns take about 10 us."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    if bits.size < width:
        bits = np.concatenate([bits, np.zeros(width - bits.size, np.uint8)])
    return bits[:width].view(np.bool_)


def allowed_ids(mask: npt.NDArray[np.uint32], width: int) -> Ids:
    """Packed uint32 mask row -> the ids below `width` that it allows, ascending; the fewer there are, the faster."""
    words = np.flatnonzero(mask)
    if words.size * FEW_WORDS > mask.size:
        return np.flatnonzero(unpack_mask(mask, width))
    places = np.flatnonzero(unpack_mask(mask[words], 32 * words.size))
    ids: Ids = 32 * words[places // 32] + places % 32
    return ids[: np.searchsorted(ids, width)]


def check_finite(logits: Floats, *, masked: bool) -> None:
    """Raises NumericalError if a row has NaN or +inf, or nothing but -inf where no mask asks for that."""
    top = logits.max() if logits.size else np.float32(np.nan)
    if not np.isfinite(top) and not (masked and top == -np.inf):
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


def adjust(logits: Floats, params: SamplingParams, seen: Collection[int], written: Sequence[int]) -> Floats:
    """Logits with penalties and biases, a copy where there are any; -inf stays -inf.

    seen: ids of prompt and output.   written: ids of the output; each presence and every occurrence costs its penalty (as in
    OpenAI's API, where the prompt is not penalised).
    """
    if params.repetition_penalty != 1.0 and seen:
        logits = penalise(logits, seen, params.repetition_penalty)
    counted = (params.presence_penalty or params.frequency_penalty) and len(written)
    if not counted and not params.logit_bias:
        return logits
    out = logits.copy()
    if counted:
        ids, counts = np.unique(np.asarray(written, np.int64), return_counts=True)
        keep = ids < out.size
        out[ids[keep]] -= params.presence_penalty + params.frequency_penalty * counts[keep]
    for token, bias in params.logit_bias.items():
        if token < out.size:
            out[token] += bias
    return out


def sample(
    logits: Floats,
    mask: npt.NDArray[np.uint32] | None,
    params: SamplingParams,
    *,
    vocab_size: int,
    seed: int = 0,
    position: int = 0,
    stream: int = 0,
    seen: Collection[int] = (),
    written: Sequence[int] = (),
) -> int:
    """One token id.

    logits: float32 [V], one row.   vocab_size: ids from here on are padding.   seen, written: ids for the penalties, see `adjust`.
    seed, position, stream: the request's seed (any 64-bit integer), the index of the token in its output, and which draw for it this is.

    Raises NumericalError if the row has NaN or +inf, or the mask leaves nothing with a finite logit.
    """
    check_finite(logits, masked=mask is not None)
    logits = adjust(logits, params, seen, written)
    size = min(logits.size, vocab_size)
    few = mask is not None and np.count_nonzero(mask) * FEW_WORDS <= mask.size
    if params.greedy and not few:
        allowed = logits[:size] if mask is None else np.where(unpack_mask(mask, size), logits[:size], -np.inf)
        best = int(allowed.argmax())  # the first of equals: the lowest id
        if allowed[best] == -np.inf:
            raise _stuck(mask, size)
        return best
    ids = np.arange(size) if mask is None else allowed_ids(mask, size)
    if not ids.size or logits[ids].max() == -np.inf:
        raise _stuck(mask, size)
    if params.greedy:
        return int(ids[logits[ids].argmax()])
    return _draw(ids, logits[ids].astype(np.float64), params, uniform(seed, position, stream))


def log_probabilities(
    logits: Floats, mask: npt.NDArray[np.uint32] | None, params: SamplingParams, token: int, *, vocab_size: int, seen: Collection[int], written: Sequence[int]
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural log-probability of `token`, and the params.logprobs likeliest tokens with theirs, in the constrained distribution.

    That is the softmax over the allowed tokens, after penalties and biases, before temperature and truncation.
    """
    logits = adjust(logits, params, seen, written)[:vocab_size].astype(np.float64)
    ids = np.arange(logits.size) if mask is None else allowed_ids(mask, logits.size)
    values = logits[ids]
    values = values - values.max()
    values -= np.log(np.exp(values).sum())
    likeliest = _heaviest(values, min(params.logprobs or 0, ids.size))[: params.logprobs or 0] if params.logprobs else ()
    return float(values[np.searchsorted(ids, token)]), tuple((int(ids[i]), float(values[i])) for i in likeliest if np.isfinite(values[i]))


def _stuck(mask: npt.NDArray[np.uint32] | None, size: int) -> NumericalError:
    if mask is not None and not unpack_mask(mask, size).any():
        return NumericalError("the mask leaves no token to sample; the grammar is stuck, or its vocabulary is not that of the model")
    return NumericalError("every allowed token has a logit of -inf; nothing can be sampled")


def _draw(ids: Ids, logits: npt.NDArray[np.float64], params: SamplingParams, u: float) -> int:
    """Truncates the distribution over `ids` as told and inverts its cumulative sum at `u` in [0, 1)."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    if 0 < params.top_k < ids.size:
        kept = np.sort(_heaviest(weights, params.top_k)[: params.top_k])
        ids, weights = ids[kept], weights[kept]
    if params.top_p < 1.0:
        kept = np.sort(_nucleus(weights, params.top_p * weights.sum()))
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0.0:
        heavy = weights >= params.min_p * weights.max()
        ids, weights = ids[heavy], weights[heavy]
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(ids[min(at, ids.size - 1)])


def _heaviest(weights: npt.NDArray[np.float64], count: int) -> Ids:
    """Places of at least the `count` largest weights, heaviest first, of equals the lower place first."""
    if count < weights.size:
        places = np.flatnonzero(weights >= np.partition(weights, weights.size - count)[weights.size - count])
    else:
        places = np.arange(weights.size)
    order: Ids = places[np.argsort(-weights[places], kind="stable")]
    return order


def _nucleus(weights: npt.NDArray[np.float64], mass: float) -> Ids:
    """Places of the fewest largest weights whose sum reaches `mass`; only as many are sorted as it takes."""
    count = NUCLEUS
    while True:
        places = _heaviest(weights, count)
        cumulative = np.cumsum(weights[places])
        if cumulative[-1] >= mass or places.size == weights.size:
            return places[: int(np.searchsorted(cumulative, mass)) + 1]
        count *= 8
