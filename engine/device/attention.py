"""Attention of a batch by a device's kernels: the `attend` that a model calls in each layer, and what a policy lets a token see.

Inputs: the batch's tables, the layers' keys and values, a kernel set, and the pool's reach. Knows nothing of models or requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.choose import Kernels
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kv_format import mixed
from agentkit.engine.kv_policy import Reach
from agentkit.engine.received import Received

__all__ = ["PagedAttention"]


class PagedAttention:
    """`Attend` for one batch: see models/decoder.py. layers, reach: of the pool.

    batch: of it all, where tokens stand and lie is read.   parts: the batch in pieces (see Batch.divided); (): as a whole.
    received: of the pool, where attention decides what is kept; None: nobody wants to know.
    """

    def __init__(
        self, batch: Batch, layers: Sequence[KVLayer], kernels: Kernels, reach: Reach, parts: Sequence[Part] = (), received: Received | None = None
    ) -> None:
        self._batch = batch
        self._layers = layers
        self._kernels = kernels
        self._reach = reach
        self._parts = tuple(parts) or (Part(batch),)
        self._received = received
        self._turns: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        cache = self._layers[layer]
        if cache.is_mixed:
            q, k = mixed(q), mixed(k)
        self._kernels.write(k, v, cache, self._batch.slots[cache.table])
        return self.attend(layer, q, window=window, scale=scale, softcap=softcap, sinks=sinks)

    def attend(
        self, layer: int, q: torch.Tensor, *, window: int | None, scale: float, softcap: float | None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same for keys and values that are written already; q is mixed where the layer's keys are."""
        cache, limit = self._layers[layer], self._reach.window
        if limit is not None:
            window = limit if window is None else min(window, limit)
        found, at = [], 0
        back = self._as_sinks_see_it(layer, q) if self._reach.sinks else q
        rules: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": sinks}
        for part, prefix in self._parts:
            own = slice(at, at + part.shape.tokens)
            at += part.shape.tokens
            if self._received is not None:
                found.append(self._weighed(layer, q[own], part, self._received, **rules))
            elif window is None and prefix is not None:
                found.append(self._kernels.attend_shared(q[own], cache, part, prefix, **rules))
            elif window is None or not self._reach.sinks:
                found.append(self._kernels.attend(q[own], cache, part, window=window, **rules))
            else:
                found.append(self._kernels.attend_streaming(q[own], back[own], cache, part, window=window, sink_keys=self._reach.sinks, **rules))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _weighed(
        self, layer: int, q: torch.Tensor, part: Batch, received: Received, *, scale: float, softcap: float | None, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention, and what its keys receive; where that decides what is kept, there are no windows, and beginnings are not shared."""
        cache, lse = self._layers[layer], torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        out = self._kernels.attend(q, cache, part, window=None, scale=scale, softcap=softcap, sinks=sinks, lse=lse)
        self._kernels.weigh(q, cache, part, lse, received, begin=layer == 0, scale=scale, softcap=softcap)
        return out

    def _as_sinks_see_it(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Queries turned back, mixed or not as they came."""
        is_mixed = self._layers[layer].is_mixed
        turned = self._turned_back(layer, mixed(q) if is_mixed else q)  # mixing twice undoes it
        return mixed(turned) if is_mixed else turned

    def _turned_back(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [T, H, D] as if the positions between the sinks and each token's window were not there."""
        rope = self._reach.rope_of_layer[layer]
        if rope not in self._turns:
            assert self._reach.kept is not None
            left_out = (self._batch.positions - self._reach.kept - self._reach.sinks + 1).clamp(min=0)
            angles = (left_out.double()[:, None] * _frequencies(self._reach.ropes[rope], q.device)).remainder(2 * math.pi)[:, None]
            self._turns[rope] = angles.cos().float(), angles.sin().float()
        cos, sin = self._turns[rope]
        a, b = q.float().chunk(2, -1)
        return torch.cat((a * cos + b * sin, b * cos - a * sin), -1).to(q.dtype)


@cache
def _frequencies(of: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """[D / 2] float64 on the device: brought there once, since a graph cannot copy from the host."""
    return torch.tensor(of, dtype=torch.float64, device=device)
