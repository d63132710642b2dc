"""Looks at a transformers model before it is used: what its layers ask of attention, and whether ours gives what its own does.

Job: one forward under PROBE that notes each layer's shapes, window, scale, cap and sinks; then a few tokens through the model's own
attention and through ours, cut into chunks and beside another text. Anything that a layer does and `attend` does not (biases,
states between tokens, positions of its own) shows as other logits and is refused, whatever the architecture.
Inputs: a loaded model. Knows nothing of files, pages or requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import PreTrainedModel

from agentkit.engine.models import transformers_attention as attention
from agentkit.engine.models.decoder import Attend
from agentkit.engine.models.reference_attention import ReferenceCache
from agentkit.errors import EngineError

if TYPE_CHECKING:
    from agentkit.engine.models.transformers_backend import TransformersDecoder

__all__ = ["Layer", "check_against_own_attention", "probe"]

_LENGTH, _CHUNK = 8, 4  # tokens of each test text, and of the first chunk of the first one
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}  # of the logits' deviation


@dataclass(frozen=True)
class Layer:
    """One attention layer: heads and sizes, and what `attend` is to be told. sinks: it has a learned logit per head that takes no value."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    scale: float
    softcap: float | None
    sinks: bool


def probe(model: PreTrainedModel) -> list[tuple[torch.nn.Module, Layer]]:
    """The attention modules in the order in which they attend, each with what it asks for; the model is left set to RUN.

    Raises EngineError where a module attends more than once, without a mask of transformers' making, or not by the interface.
    """
    found: list[tuple[torch.nn.Module, Layer]] = []

    def note(
        module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, settings: Mapping[str, Any]
    ) -> torch.Tensor:
        if mask is None or mask.dtype != torch.long or any(module is seen for seen, _ in found):
            raise EngineError(
                f"{type(model).__name__} attends in a way that cannot be taken over ({type(module).__name__}): without a mask, or with one of "
                f"its own making; it cannot run here with transformers {transformers.__version__}"
            )
        window, size = int(mask.flatten()[0]), q.shape[-1]
        if window == attention.OTHER:
            raise EngineError(
                f"the architecture {model.config.model_type!r} attends in a pattern that is neither causal nor a sliding window; "
                "only decoder-only models with one of these two can run here"
            )
        scale, softcap = settings.get("scaling"), settings.get("softcap")
        layer = Layer(q.shape[1], k.shape[1], size, v.shape[-1], window or None, scale or size**-0.5, softcap, settings.get("s_aux") is not None)
        found.append((module, layer))
        return v.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(1, 2).contiguous()

    attention.use(model, attention.PROBE)
    ids = _ids(model.config.get_text_config(decoder=True).vocab_size, model.device)[0, :_CHUNK]
    with attention.handled_by(note):
        model(input_ids=ids[None], position_ids=torch.arange(_CHUNK, device=model.device)[None], use_cache=False)
    if not found:
        raise EngineError(f"{type(model).__name__} does not attend through transformers' AttentionInterface; it cannot run here")
    attention.use(model, attention.RUN)
    return found


def check_against_own_attention(decoder: TransformersDecoder) -> None:
    """Raises EngineError where two short texts, one in two chunks and beside the other, do not get the logits that the model itself gives them."""
    ids = _ids(decoder.config.vocab_size, decoder.device)
    attention.use(decoder.model, "eager")
    places = torch.arange(_LENGTH, device=decoder.device)
    own = decoder.model(input_ids=ids, position_ids=places.expand(2, -1), use_cache=False).logits.float()  # [2, T, V]
    attention.use(decoder.model, attention.RUN)
    caches = _Caches(decoder)
    decoder.forward(ids[0, :_CHUNK], places[:_CHUNK], caches.attend(_CHUNK))
    tail = _LENGTH - _CHUNK
    ours = decoder.forward(torch.cat((ids[0, _CHUNK:], ids[1])), torch.cat((places[_CHUNK:], places)), caches.attend(tail, _LENGTH))
    expected = torch.cat((own[0, _CHUNK:], own[1]))
    errors = (ours - expected).std(1) / expected.std(1)  # [tail + LENGTH], each row in units of its own logits
    worst = max(float(part.median()) for part in torch.split(errors, [tail, _LENGTH]))  # of a text: routers may flip a row in low precision
    if not worst <= _TOLERANCE[decoder.dtype]:
        raise EngineError(
            f"the architecture {decoder.config.architecture!r} does not compute the same with paged attention as with its own (logits differ by "
            f"{worst:.2g} of their deviation): its layers have biases, states or positions that cannot be kept in pages, so it cannot run here"
        )


class _Caches:
    """Contiguous caches of the two texts."""

    def __init__(self, decoder: TransformersDecoder) -> None:
        self._caches = [ReferenceCache(decoder.config, _LENGTH, dtype=decoder.dtype, device=decoder.device) for _ in range(2)]
        self._layers = decoder.config.num_layers

    def attend(self, *counts: int) -> Attend:
        """An `Attend` for so many new tokens of the first text, and of the second."""

        def call(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **settings: Any) -> torch.Tensor:
            parts = [torch.split(x, list(counts)) for x in (q, k, v)]
            out = torch.cat([cache(layer, *part, **settings) for cache, *part in zip(self._caches, *parts, strict=False)])
            if layer == self._layers - 1:
                for cache, count in zip(self._caches, counts, strict=False):
                    cache.commit(count)
            return out

        return call


def _ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    """Token ids [2, T] from all over the vocabulary."""
    return (torch.arange(1, 2 * _LENGTH + 1, device=device) * 7919 % vocab_size).view(2, _LENGTH)
