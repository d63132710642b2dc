"""A decoder whose products have adapters beside them, by torch: other ones for the rows of each request of a batch.

Inputs: a decoder and who uses which rows. The decoder's weights are shared; only its linear layers are wrapped, those that no adapter of
the batch changes stay as they are. Knows nothing of requests, pages or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from agentkit.engine.adapters.adapter import MATRICES, AdapterUse, Change, Layered, Place
from agentkit.engine.models.decoder import Decoder, Layer, Linear
from agentkit.engine.weights.packed import PackedDecoder

__all__ = ["AdaptedLinear", "Run", "adapted", "runs_of"]

Run = tuple[slice, AdapterUse]
"""Neighbouring rows, and what they use."""


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """x [T, in] -> [T, out]. additions: rows, what they get, and how much of it."""

    base: Linear
    additions: Sequence[tuple[slice, Change, float]]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.base(x)
        assert out.stride(1) == 1, "outputs of a row lie one behind the other"
        for rows, change, scale in self.additions:
            change.add(x, out, rows, scale)
        return out


def runs_of(uses: Sequence[AdapterUse | None]) -> list[Run]:
    """Of what each row of a batch uses, the stretches of equal ones; rows without an adapter are in none."""
    runs: list[Run] = []
    start = 0
    for end in range(1, len(uses) + 1):
        if end == len(uses) or uses[end] != uses[start]:
            use = uses[start]
            if use is not None:
                runs.append((slice(start, end), use))
            start = end
    return runs


def adapted(decoder: Decoder, uses: Sequence[AdapterUse | None], chosen: Sequence[int]) -> Decoder:
    """The decoder for one forward. uses: of each row of the batch.   chosen: the rows that go on after the last layer's attention."""
    if isinstance(decoder, PackedDecoder):
        from agentkit.engine.adapters.whole import with_adapters  # its kernel is compiled only where there are adapters

        return with_adapters(decoder, uses, chosen)
    runs, after = runs_of(uses), runs_of([uses[row] for row in chosen])
    last = len(decoder.layers) - 1
    layers = [_layer(layer, index, runs, after if index == last else runs) for index, layer in enumerate(decoder.layers)]
    return Decoder(decoder.config, decoder.embedding, layers, decoder.final_norm, decoder.head)


def _layer(layer: Layer, index: int, runs: Sequence[Run], after_attention: Sequence[Run]) -> Layer:
    changed: dict[str, Any] = {}
    for name in MATRICES:
        here = runs if name == "qkv" else after_attention
        additions = [(rows, change, use.scale) for rows, use in here if (change := _change(use, (index, name))) is not None]
        if additions:
            changed[name] = AdaptedLinear(getattr(layer, name), additions)
    return replace(layer, **changed) if changed else layer


def _change(use: AdapterUse, place: Place) -> Change | None:
    assert isinstance(use.adapter.form, Layered), "adapters of an engine are in the form that its model needs"
    return use.adapter.form.places.get(place)
