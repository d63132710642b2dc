"""The native decoder as a GPU runs it: the same weights, with fused kernels between the matrices and keys and values in pages.

Inputs: a `Decoder` and the keys and values of its layers. `forward` takes a batch of device tensors and never looks at their values on
the host, so that it can be captured in a graph. Knows nothing of requests, schedulers or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from agentkit.engine.device.attention import PagedAttention
from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.choose import kernel_set
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kv_policy import Reach
from agentkit.engine.models.decoder import Decoder, Layer
from agentkit.engine.received import Received

__all__ = ["DeviceDecoder"]


class DeviceDecoder:
    """decoder: the weights, on the device.   layers: of the pool's keys and values, there too.

    kernels: "triton", or "reference" for torch's operations (see kernels/gpu/choose.py).   reach: the pool's; None: every token sees all before it.
    received: the pool's, where attention decides what is kept.
    """

    def __init__(
        self, decoder: Decoder, layers: Sequence[KVLayer], kernels: str = "triton", reach: Reach | None = None, received: Received | None = None
    ) -> None:
        self.config = decoder.config
        self.device = decoder.device
        self.layers = layers
        self._decoder = decoder
        self._reach = reach or Reach()
        self._received = received
        self._kernels = kernel_set(kernels, decoder.device)
        self._frequencies = [torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=decoder.device) for rope in self.config.ropes]

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [R, V] in float32 of the batch's rows. Keys and values of its tokens are in their slots afterwards."""
        return self.logits(self.states(batch))

    def states(self, batch: Batch, parts: Sequence[Part] = (), layers: Sequence[Layer] | None = None) -> torch.Tensor:
        """[R, E]: what the output layer reads at the batch's rows.   parts: see PagedAttention.   layers: with adapters beside; None: the decoder's."""
        config, decoder, layers = self.config, self._decoder, layers or self._decoder.layers
        residual = F.embedding(batch.token_ids, decoder.embedding)  # [T, E]
        if config.embed_scale != 1.0:
            residual = residual * float(torch.tensor(config.embed_scale).to(decoder.dtype))
        tables = [_tables(f, rope.attention_factor, batch.positions) for f, rope in zip(self._frequencies, config.ropes, strict=True)]
        attention = PagedAttention(batch, self.layers, self._kernels, self._reach, parts, self._received)
        x = self._kernels.norm(residual, layers[0].before_attention, config.norm_eps)
        for index, layer in enumerate(layers):
            x = self._attention(index, layer, x, tables[config.rope_of_layer[index]], batch, attention)
            if index == len(layers) - 1:  # the other rows serve only as keys and values
                x, residual = x.index_select(0, batch.rows), residual.index_select(0, batch.rows)
            x = self._kernels.add_norm(layer.out(x), residual, layer.before_mlp, config.norm_eps, layer.after_attention)
            x = layer.down(self._kernels.gated(layer.gate_up(x), config.activation))
            following = layers[index + 1].before_attention if index + 1 < len(layers) else decoder.final_norm
            x = self._kernels.add_norm(x, residual, following, config.norm_eps, layer.after_mlp)
        return x

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """states [N, E] -> logits [N, V] in float32."""
        logits = self._decoder.head(states).float()
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self, index: int, layer: Layer, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], batch: Batch, attention: PagedAttention
    ) -> torch.Tensor:
        """x [T, E], normed -> [T, H * D]."""
        config, cache = self.config, self.layers[index]
        qkv = layer.qkv(x).view(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        q = self._kernels.rotate_and_write(qkv, *tables, cache, batch.slots[cache.table], layer.qk_norm, config.norm_eps)
        out = attention.attend(index, q, window=config.windows[index], scale=config.attention_scale, softcap=config.attention_softcap)
        return out.view(-1, config.num_heads * config.head_dim)


def _tables(frequencies: torch.Tensor, factor: float, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """frequencies [D / 2] -> cosines and sines [T, D / 2] in float32."""
    angles = positions[:, None].to(torch.float32) * frequencies
    return angles.cos() * factor, angles.sin() * factor
