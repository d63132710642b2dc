"""What the Triton kernels compute, in plain torch: the same calls and results, on any device, without regard to time or memory.

Inputs: as for the kernels. Each request is taken by itself, which needs its lengths on the host: nothing here can be captured in a
graph. Sums are in float32. For machines without a GPU or Triton, and for tests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import encode, mixed
from agentkit.engine.received import Received

__all__ = ["add_norm", "attend", "attend_shared", "attend_streaming", "expand", "gated", "norm", "rotate_and_write", "shrink", "weigh", "write"]


def attend(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """See attention.attend."""
    return _by_request(q, layer, batch, scale, window, softcap, sinks, lse)


def attend_shared(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    prefix: Prefix,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """See attention.attend_shared: the pages of a shared beginning are in each request's own table, too, so this is the same attention."""
    return attend(q, layer, batch, scale=scale, softcap=softcap, sinks=sinks, lse=lse)


def attend_streaming(
    q: torch.Tensor,
    back: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    *,
    scale: float,
    window: int,
    sink_keys: int,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See attention.attend_streaming."""
    return _by_request(q, layer, batch, scale, window, softcap, sinks, None, (back, sink_keys))


def _by_request(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
    streaming: tuple[torch.Tensor, int] | None = None,
) -> torch.Tensor:
    """streaming: queries turned back, and how many keys they are for."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts, lengths = batch.query_starts.tolist(), batch.lengths.tolist()
    back, sink_keys = streaming or (q, 0)
    for request, length in enumerate(lengths):
        own = slice(starts[request], starts[request + 1])
        if own.start == own.stop:
            continue
        keys, values = layer.read(_slots(layer, batch, request, length))
        seen, apart = _seen(batch, request, own, length, window, sink_keys)
        keys, values = (torch.where((seen | apart).any(0)[None, :, None], x, 0.0) for x in (keys, values))
        scores = torch.where(apart[:, None], _scores(back[own], keys), _scores(q[own], keys)) * scale
        result, own_lse = _softmax(scores, values, seen | apart, softcap, sinks)
        out[own] = result.to(q.dtype)
        if lse is not None:
            lse[own] = own_lse
    return out


def weigh(
    q: torch.Tensor, layer: KVLayer, batch: Batch, lse: torch.Tensor, received: Received, *, begin: bool, scale: float, softcap: float | None = None
) -> None:
    """See weigh.weigh."""
    starts, lengths = batch.query_starts.tolist(), batch.lengths.tolist()
    for request, length in enumerate(lengths):
        own, slots = slice(starts[request], starts[request + 1]), _slots(layer, batch, request, length)
        if not length or batch.slots[layer.table, own.start] < 0:
            continue
        known = length - own.stop + own.start
        scores = _scores(q[own], layer.read(slots)[0]) * scale
        scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
        seen, _ = _seen(batch, request, own, length, None, 0)
        weights = torch.exp(scores - lse[own, :, None]).masked_fill(~seen[:, None], 0.0)  # [T, H, S]
        found = weights.sum(0).unflatten(0, (layer.kv_heads, -1)).sum(1)
        if begin:
            received.sums[:, slots] = torch.where(torch.arange(length, device=q.device) < known, received.heads_at(slots, known), 0.0)
            received.ends[:, slots], received.fresh[:, slots] = length, found
        else:
            received.fresh[:, slots] += found


def _slots(layer: KVLayer, batch: Batch, request: int, length: int) -> torch.Tensor:
    """[S] of a request's keys in this layer."""
    key = torch.arange(length, device=batch.lengths.device)
    page = batch.pages[layer.table, request].long()[key // PAGE].clamp(min=0)  # pages that nobody sees may be gone
    return page * PAGE + key % PAGE


def _seen(batch: Batch, request: int, tokens: slice, length: int, window: int | None, sink_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, S] of one request: whether its tokens see its keys; and which of them are sinks that their windows have left."""
    device, count = batch.lengths.device, tokens.stop - tokens.start
    key, own = torch.arange(length, device=device), torch.arange(length - count, length, device=device)
    tree = int(batch.tree_starts[request])
    place = batch.positions[tokens]
    stands = torch.cat((key[:tree], batch.positions[tokens.stop - (length - tree) : tokens.stop])) if tree < length else key
    seen = key <= own[:, None]
    node = (key - tree).clamp(min=0)
    seen &= (key < tree) | ((batch.paths[tokens, None] >> node) & 1 == 1)
    if window is None:
        return seen, torch.zeros_like(seen)
    low = torch.where(place < window + sink_keys, -1, place - window)[:, None]
    return seen & (stands > low), (low >= 0) & (key < sink_keys)


def _scores(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """q [T, H, D], keys [KV, S, D] -> [T, H, S]."""
    return torch.einsum("thd,hsd->ths", q.float(), keys.repeat_interleave(q.shape[1] // keys.shape[0], 0))


def _softmax(
    scores: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, softcap: float | None, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """scores [T, H, S], values [KV, S, D], seen [T, S] -> out [T, H, D], log-sum-exp [T, H]."""
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(scores.shape[:2])[..., None]), -1)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.clamp(min=-1e30)[..., None])[..., : values.shape[1]]
    return torch.einsum("ths,hsd->thd", weights, values.repeat_interleave(weights.shape[1] // values.shape[0], 0)), lse


def write(k: torch.Tensor, v: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None:
    """See store.write."""
    kept = slots >= 0
    to = slots[kept].long()
    for new, stored, scales in ((k, layer.keys, layer.key_scales), (v, layer.values, layer.value_scales)):
        rows = new[kept].transpose(0, 1).float()  # [KV, T, D]
        if scales is not None:
            codes = encode(rows, torch.uint8 if stored.dtype == torch.float8_e4m3fn else stored.dtype, keys=False)
            coded = KVLayer.of(codes.expand(2, *codes.shape))
            assert coded.key_scales is not None
            rows, scales[:, to] = coded.keys, coded.key_scales
        if stored.itemsize == 1:  # as bytes, which every device can put
            stored.view(torch.uint8)[:, to] = rows.to(stored.dtype).view(torch.uint8)
        else:
            stored[:, to] = rows.to(stored.dtype)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See norm.norm."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, before: torch.Tensor | None = None) -> torch.Tensor:
    """See norm.add_norm."""
    residual += x if before is None else norm(x, before, eps)
    return norm(residual, weight, eps)


def rotate_and_write(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layer: KVLayer, slots: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 0.0
) -> torch.Tensor:
    """See rotary.rotate_and_write."""
    turned, dim = qkv.shape[1] - layer.kv_heads, qkv.shape[2]
    qk = qkv[:, :turned].float()
    if weight is not None:
        qk = F.rms_norm(qk, (dim,), None, eps) * weight
    full_cos, full_sin = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
    qk = qk * full_cos + qk.roll(dim // 2, -1) * full_sin
    qk = mixed(qk) if layer.is_mixed else qk
    heads = turned - layer.kv_heads
    write(qk[:, heads:], qkv[:, turned:], layer, slots)
    return qk[:, :heads].to(qkv.dtype)


def gated(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """See gate.gated."""
    gate, up = gate_up.float().chunk(2, -1)
    activation = F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
    return (activation * up).to(gate_up.dtype)


def shrink(x: torch.Tensor, down: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> torch.Tensor:
    """See lora.shrink."""
    chosen = _of_tokens(batch, adapters, -1).clamp(min=0).long()
    return torch.einsum("tk,trk->tr", x.float(), down[chosen].float())[None]


def expand(h: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> None:
    """See lora.expand."""
    chosen = _of_tokens(batch, adapters, -1)
    used, at = chosen >= 0, chosen.clamp(min=0).long()
    added = torch.einsum("tr,tcr->tc", h.sum(0), up[at].float()) * _of_tokens(batch, scales, 0.0)[:, None]
    out[used] = (out[used].float() + added[used]).to(out.dtype)


def _of_tokens(batch: Batch, of_requests: torch.Tensor, padding: float) -> torch.Tensor:
    """[T]: of each token what its request [B] has; `padding` where there is none."""
    values = of_requests.repeat_interleave(batch.query_starts.diff())
    return F.pad(values, (0, batch.shape.tokens - values.shape[0]), value=padding)
