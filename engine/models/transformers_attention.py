"""Attention of transformers models, taken over by whoever runs them.

Job: registers two attention implementations with transformers' AttentionInterface; both hand a layer's queries, keys and values
to the handler that `handled_by` sets for the thread. RUN is for work: transformers builds no mask for it. PROBE is for looking: its
masks are filled with the window that they stand for, or say that it is another pattern.
Knows nothing of caches, and of models only where one does not follow the interface (Falcon).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.falcon import modeling_falcon as falcon

from agentkit.errors import EngineError

__all__ = ["OTHER", "PROBE", "RUN", "Handler", "follows_interface", "handled_by", "prepare", "use"]

RUN, PROBE = "agentkit", "agentkit_probe"
OTHER = -1  # in place of a window: a pattern that is neither causal nor a window
_TEST_LENGTH = 48  # positions at which a mask without a window is looked at


class Handler(Protocol):
    """q [1, H, T, D], k [1, KV, T, D], v [1, KV, T, Dv] of one layer -> [1, T, H, Dv].

    mask: None, or under PROBE an int64 tensor filled with the window (0: none, OTHER: not causal).
    settings: what the model passes (scaling, softcap, s_aux ...).
    """

    def __call__(
        self, module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, settings: Mapping[str, Any]
    ) -> torch.Tensor: ...


_HANDLER: ContextVar[Handler] = ContextVar("agentkit_attention_handler")


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Within it, attention of models set to RUN or PROBE is the handler's work, in this thread."""
    token = _HANDLER.set(handler)
    try:
        yield
    finally:
        _HANDLER.reset(token)


def use(model: PreTrainedModel, implementation: str) -> None:
    """Sets RUN, PROBE or "eager" for the whole model."""
    model.config._attn_implementation = implementation


def follows_interface(model_class: type[PreTrainedModel]) -> bool:
    """Whether a model's attention can be taken over; what computes its scores itself (ALiBi and the like) cannot."""
    return model_class is falcon.FalconForCausalLM or hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS")


def prepare(model: PreTrainedModel) -> None:
    """Gives a loaded model's attention the form of the interface, where it does not have it."""
    for module in model.modules():
        if isinstance(module, falcon.FalconAttention):
            setattr(module, "forward", types.MethodType(_falcon_attention, module))  # noqa: B010 - the type checker knows no other way


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None, **settings: Any
) -> tuple[torch.Tensor, None]:
    return _HANDLER.get()(module, query, key, value, attention_mask, settings), None


def _probe_mask(*, mask_function: Callable[..., torch.Tensor], device: torch.device | str = "cpu", **options: Any) -> torch.Tensor:
    """A mask [1, 1, 1, 1] filled with its window, or with OTHER: a model may make masks that none of its layers uses.

    device: of what mask_function may close over; older versions of transformers do not pass it, and have nothing there.
    """
    window = options.get("local_size")
    length = 2 * window + 2 if window else _TEST_LENGTH
    columns = torch.arange(length, device=device)
    zero = torch.zeros((), dtype=torch.long, device=columns.device)
    meaning = window or 0
    for row in {length - 1, length // 2, length // 2 - 1, 1}:
        allowed = mask_function(zero, zero, columns.new_tensor(row), columns)
        expected = columns <= row
        if window:
            expected &= columns > row - window
        if not torch.equal(allowed.expand_as(expected), expected):
            meaning = OTHER
    return torch.full((1, 1, 1, 1), meaning, dtype=torch.long, device=columns.device)


def _falcon_attention(
    self: Any, hidden_states: torch.Tensor, alibi: torch.Tensor | None, attention_mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """FalconAttention.forward by the interface, grouped heads kept grouped. hidden_states: [1, T, E]."""
    implementation = self.config._attn_implementation
    if implementation not in (RUN, PROBE):
        own: tuple[torch.Tensor, torch.Tensor | None] = falcon.FalconAttention.forward(self, hidden_states, alibi, attention_mask, **options)  # type: ignore[arg-type]
        return own
    if alibi is not None:
        raise EngineError("this Falcon model has ALiBi position biases, which attention over pages does not have; choose one with rotary embeddings")
    fused, groups = self.query_key_value(hidden_states), self.num_kv_heads
    if self.new_decoder_architecture or self.multi_query:  # per group: its queries, one key, one value
        fused = fused.view(1, fused.shape[1], groups, -1, self.head_dim)
        parts = fused[..., :-2, :].flatten(2, 3), fused[..., -2, :], fused[..., -1, :]
    else:
        parts = fused.view(1, fused.shape[1], self.num_heads, 3, self.head_dim).unbind(3)
    q, k, v = (part.transpose(1, 2) for part in parts)  # [1, H, T, D]
    rotate: Any = falcon.apply_rotary_pos_emb
    q, k = rotate(q, k, *options["position_embeddings"])
    causal = torch.zeros(1, 1, 1, 1, dtype=torch.long)  # always; older versions of transformers make this mask by other means than the interface
    out, _ = _attention(self, q, k, v, causal, scaling=self.inv_norm_factor)
    return self.dense(out.flatten(2)), None


for _name in (RUN, PROBE):
    AttentionInterface.register(_name, _attention)
AttentionMaskInterface.register(PROBE, _probe_mask)
