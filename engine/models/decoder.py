"""The native decoder: one transformer for the whole Llama family, driven by `ModelConfig`.

Job: token ids and positions -> logits. It owns no KV cache: attention is a callable given to `forward`, which stores keys and
values and attends as it likes (paged, cascade, quantised, tree masks), so none of those concern this file. Linear layers are
callables too, so quantised kernels can take the place of `Dense`. q, k, v and gate, up are fused into one matrix each.
Shapes: T tokens, H query heads, KV key heads, D head size, E hidden size, F MLP size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.rope import rotary_tables, rotate

__all__ = ["Allowed", "Attend", "Decoder", "Dense", "LanguageModel", "Layer", "Linear", "RowSelection"]

RowSelection = torch.Tensor | slice | None
Allowed = Sequence[npt.NDArray[np.uint32] | None]
"""Of each row of logits, which are wanted: [words], bit i % 32 of word i // 32 for token i, none beyond the words; None: all of them."""

FEW = 4  # a plain matrix is multiplied by the outputs that are wanted where these are at most one in so many


class Attend(Protocol):
    """Stores k, v [T, KV, D] of this layer and returns attention of q [T, H, D] over all it holds for these tokens: [T, H, D].

    window: positions each token sees, its own included; None: all. scale multiplies q·k; softcap c: scores become c·tanh(s/c).
    sinks [H]: a score per head that takes part in the softmax and brings no value (gpt-oss); None: there are none.
    """

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
    ) -> torch.Tensor: ...


class LanguageModel(Protocol):
    """What the engine runs: the native `Decoder`, or another with its contract. forward: see Decoder.forward."""

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logits_for: RowSelection = None) -> torch.Tensor: ...


class Linear(Protocol):
    """x [T, in] -> [T, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix: weight [out, in], bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def rows(self, outputs: torch.Tensor) -> Dense:
        """The same for some outputs (int64 [n]) only."""
        return Dense(self.weight.index_select(0, outputs), None if self.bias is None else self.bias.index_select(0, outputs))


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block. Norms are [E] in float32 with the offset added; qk_norm is [H + KV, D], or None.

    qkv: E -> (H + 2·KV)·D in the order q, k, v. gate_up: E -> 2·F in the order gate, up.
    after_attention, after_mlp: the outer norms of a sandwich, or None.
    """

    before_attention: torch.Tensor
    qkv: Linear
    out: Linear
    before_mlp: torch.Tensor
    gate_up: Linear
    down: Linear
    qk_norm: torch.Tensor | None = None
    after_attention: torch.Tensor | None = None
    after_mlp: torch.Tensor | None = None


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": _gelu_tanh}


class Decoder:
    """A decoder with its weights, on one device in one dtype. Stateless: `forward` may be called from any thread."""

    def __init__(self, config: ModelConfig, embedding: torch.Tensor, layers: Sequence[Layer], final_norm: torch.Tensor, head: Linear) -> None:
        """embedding [V, E]; layers as many as config says; final_norm [E] float32; head E -> V."""
        self.config = config
        self.embedding = embedding
        self.layers = tuple(layers)
        self.final_norm = final_norm
        self.head = head
        self.device = embedding.device
        self.dtype = embedding.dtype
        self._activation = _ACTIVATIONS[config.activation]
        self._embed_scale = float(torch.tensor(config.embed_scale).to(self.dtype))
        self._frequencies = tuple(torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=self.device) for rope in config.ropes)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logits_for: RowSelection = None) -> torch.Tensor:
        """Logits [N, V] in float32 for the chosen rows, in the order chosen.

        token_ids, positions: int64 [T]. logits_for: rows of the T tokens (int64 [N] or a slice); None: all of them.
        """
        return self._logits(self.states(token_ids, positions, attend, logits_for))

    __call__ = forward

    def forward_with_states(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, states_for: torch.Tensor, logits: int, allowed: Allowed | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [logits, V] of the first `logits` of the chosen rows, and `states` [N, E] of all of them.

        allowed: of each row of them, which logits are wanted; others are computed or -inf, whichever costs less. None: all are wanted.
        """
        states = self.states(token_ids, positions, attend, states_for)
        return self._logits(states[:logits], allowed), states

    def states(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, chosen: RowSelection = None) -> torch.Tensor:
        """[N, E]: what the output layer reads at the chosen rows. Arguments as for `forward`."""
        x = F.embedding(token_ids, self.embedding)  # [T, E]
        if self._embed_scale != 1.0:
            x = x * self._embed_scale
        tables = [
            rotary_tables(frequencies, positions, rope.attention_factor, self.dtype)
            for frequencies, rope in zip(self._frequencies, self.config.ropes, strict=True)
        ]
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            cos, sin = tables[self.config.rope_of_layer[index]]
            x = self._block(index, layer, x, cos, sin, attend, chosen if index == last else None)
        return self._norm(x, self.final_norm)

    def _block(self, index: int, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend, rows: RowSelection) -> torch.Tensor:
        """One block. After attention only `rows` go on (the last layer's other rows serve only as keys and values)."""
        attended = self._attention(index, layer, self._norm(x, layer.before_attention), cos, sin, attend)  # [T, H·D]
        if rows is not None:
            attended, x = attended[rows], x[rows]
        attended = layer.out(attended)
        if layer.after_attention is not None:
            attended = self._norm(attended, layer.after_attention)
        x = x + attended
        gate, up = layer.gate_up(self._norm(x, layer.before_mlp)).chunk(2, -1)
        fed = layer.down(self._activation(gate).mul_(up))
        if layer.after_mlp is not None:
            fed = self._norm(fed, layer.after_mlp)
        return x + fed

    def _attention(self, index: int, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend) -> torch.Tensor:
        config = self.config
        heads, keys = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(x).view(-1, heads + 2 * keys, config.head_dim)
        qk = qkv[:, : heads + keys]
        if layer.qk_norm is not None:
            qk = self._norm(qk, layer.qk_norm)
        qk = rotate(qk, cos, sin)  # q and k turn together
        attended = attend(
            index,
            qk[:, :heads],
            qk[:, heads:],
            qkv[:, heads + keys :],
            window=config.windows[index],
            scale=config.attention_scale,
            softcap=config.attention_softcap,
        )
        return attended.reshape(-1, heads * config.head_dim)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm over the last axis, in float32; weight broadcasts over the axes before."""
        wide = x.float()
        if weight.dim() == 1:
            return F.rms_norm(wide, (x.shape[-1],), weight, self.config.norm_eps).to(x.dtype)
        return (F.rms_norm(wide, (x.shape[-1],), None, self.config.norm_eps) * weight).to(x.dtype)

    def _logits(self, x: torch.Tensor, allowed: Allowed | None = None) -> torch.Tensor:
        size, cap = self.config.vocab_size, self.config.logit_softcap
        head, few = self.head, None
        if allowed is not None and isinstance(head, Dense) and (few := _few(allowed, size)) is not None:
            few = few.to(x.device)
            head = head.rows(few)
        logits = head(x).float()
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits if few is None else logits.new_full((x.shape[0], size), -torch.inf).index_copy_(1, few, logits)


def _few(allowed: Allowed, size: int) -> torch.Tensor | None:
    """The tokens below `size` that any row wants, int64; None where they are many."""
    words = np.zeros(-(-size // 32), np.uint32)
    for row in allowed:
        if row is None:
            return None
        count = min(words.size, row.size)
        words[:count] |= row[:count]
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little", count=size))
    return torch.from_numpy(ids) if ids.size * FEW <= size else None
