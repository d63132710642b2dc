"""What the kernels of a forward read and write: sizes, tables of weights, a step's batch, and room to work.

Named tuples of numpy arrays and numbers, which numba passes as they are. Knows nothing of how they are filled or used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# table of weights: one line per matrix (four per layer, the head last), then columns
KIND, CODES, SCALES_AT, GROUPS, BLOCKS, BIAS, MATRIX_COLUMNS = 0, 1, 2, 3, 4, 5, 6
M_QKV, M_OUT, M_GATE_UP, M_DOWN, MATRICES = 0, 1, 2, 3, 4
# table of layers: offsets of norms in `floats` (-1: none), then window (0: none) and rotary embedding
BEFORE_ATTENTION, BEFORE_MLP, QK_NORM, AFTER_ATTENTION, AFTER_MLP, WINDOW, ROPE, LAYER_COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7


class Shape(NamedTuple):
    """Sizes of a decoder; hidden_, heads_, inner_ and qkv_stride are rounded up to whole groups of 32."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    activation: int
    ropes: int
    final_norm: int
    hidden_stride: int
    heads_stride: int
    inner_stride: int
    qkv_stride: int


class Constants(NamedTuple):
    """eps of norms, factor of embeddings, scale of q.k, soft caps of attention and logits (0: none); all float32."""

    eps: Any
    embed_scale: Any
    scale: Any
    attention_cap: Any
    logit_cap: Any


class Weights(NamedTuple):
    """codes uint8 and scales uint16 (half precision) of all matrices; floats: norms and biases; see the tables above.

    narrow: do matrices of 4 bits meet activations of 8 bits (else of 16)?
    frequencies [ropes * D/2], factors [ropes] of the rotary embeddings. embedding [V, E] float32.
    """

    narrow: Any
    matrices: Any
    layers: Any
    codes: Any
    scales: Any
    floats: Any
    frequencies: Any
    factors: Any
    embedding: Any


class Batch(NamedTuple):
    """ids, positions [T], slots [tables, T]; chosen [N]: rows whose states are wanted, of the first `sampled` of them the logits, too.

    order [N]: the chosen rows in the order in which the head takes them, those with logits first. allowed uint32 [sampled, blocks of the head], in
    that order, or empty: a bit for each output of a block; where a row has none of a block, its logits there are -inf and not computed.
    Then pages [tables, n] and what attention.plan makes, and trees and sinks: see attention.attend. window: of all layers, beside their own; 0: none.
    left_out [T]: how many positions lie between a token's sinks and its window; empty without sinks. places [T]: positions among what is kept.
    tables [L, 2]: which page table each layer has, and which of the layers of its pages it is.
    """

    ids: Any
    positions: Any
    slots: Any
    chosen: Any
    sampled: int
    order: Any
    allowed: Any
    pages: Any
    tasks: Any
    rows: Any
    parts: Any
    trees: Any
    window: int
    sinks: int
    left_out: Any
    places: Any
    tables: Any


class Work(NamedTuple):
    """Activations of all tokens, each row padded to its stride with zeros. residual [2, T, E]; turns [ropes, T, D].

    to_hidden, to_out, to_down: rounded rows that the next matrix multiplies, GROUP_WORDS for each 32 numbers.
    back [ropes, T, D]: turns by what was left out; empty without sinks. exponentials, received: see attention.weigh; empty where not wanted.
    """

    residual: Any
    normed: Any
    to_hidden: Any
    qkv: Any
    attended: Any
    to_out: Any
    to_down: Any
    partial: Any
    turns: Any
    back: Any
    exponentials: Any
    received: Any
    logits: Any
