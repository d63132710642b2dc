"""Small networks that guess the next tokens from the target model's hidden state.

Inputs: the state that the target's output layer reads (float32 [.., E]) and, for EAGLE, the embeddings of the tokens that
followed. Outputs: logits over a *draft vocabulary*, the R tokens that the training text used most (as in FR-Spec,
arXiv:2502.14856): the output layer over all tokens would cost more than the head itself. Knows nothing of requests or trees.

- `MedusaHeads` (arXiv:2401.10774): one residual block per position ahead; all guesses come from one state.
- `EagleHead` (arXiv:2401.15077): one decoder layer that continues the sequence of states, fed with the tokens chosen on the way.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from agentkit.errors import EngineError

CONTEXT = 64  # states that EAGLE's layer looks back on: those of a request's prompt may have come from the prefix cache
FORMAT = 1


@dataclass(frozen=True)
class HeadsConfig:
    """kind: "medusa" or "eagle".   model: digest of the target's weights.   hidden: E.   vocabulary: R.   heads: positions ahead, of Medusa.

    attention_heads: of EAGLE's layer.   score: share of held-out tokens that the first guess got right, for whoever chooses.
    """

    kind: str
    model: str
    hidden: int
    vocabulary: int
    heads: int = 4
    attention_heads: int = 8
    score: float = 0.0


Past = tuple[torch.Tensor, torch.Tensor]


class MedusaHeads(nn.Module):
    """states [.., E] -> logits [heads, .., R]: guess h is of the token h + 2 places after the state's own (the model chooses the next itself)."""

    def __init__(self, config: HeadsConfig, ids: torch.Tensor, output: torch.Tensor) -> None:
        """ids: int64 [R], the draft vocabulary.   output: [R, E], these rows of the target's output layer."""
        super().__init__()
        self.ids: torch.Tensor
        self.config = config
        self.blocks = nn.ModuleList(nn.Linear(config.hidden, config.hidden) for _ in range(config.heads))
        self.output = nn.Parameter(output.clone())
        self.register_buffer("ids", ids.clone())
        for parameter in self.blocks.parameters():
            nn.init.zeros_(parameter)  # begins as the target's own output layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        moved = torch.stack([states + F.silu(block(states)) for block in self.blocks])
        return moved @ self.output.T


class EagleHead(nn.Module):
    """Continues a sequence of states by one decoder layer; see `forward` and `step`."""

    def __init__(self, config: HeadsConfig, ids: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__()
        self.ids: torch.Tensor
        e, self.config = config.hidden, config
        self.fuse = nn.Linear(2 * e, e)
        self.before = nn.RMSNorm(e)
        self.qkv = nn.Linear(e, 3 * e, bias=False)
        self.out = nn.Linear(e, e, bias=False)
        self.between = nn.RMSNorm(e)
        self.up = nn.Linear(e, 4 * e)
        self.down = nn.Linear(2 * e, e)
        self.last = nn.RMSNorm(e)
        self.output = nn.Parameter(output.clone())
        self.register_buffer("ids", ids.clone())
        self.distance = nn.Parameter(torch.zeros(config.attention_heads, CONTEXT))  # bias by how far back, instead of positions

    def forward(self, states: torch.Tensor, embeddings: torch.Tensor, past: Past | None = None) -> tuple[torch.Tensor, Past]:
        """One place on: the states that follow, and what to pass as `past` with the places after these.

        states [B, T, E], embeddings [B, T, E] of the tokens one place after them, past: keys and values [B, H, P, D] of places before.
        """
        x = self.fuse(torch.cat((embeddings, states), -1))
        q, k, v = self._split(self.qkv(self.before(x)))
        if past is not None:
            k, v = torch.cat((past[0], k), -2), torch.cat((past[1], v), -2)
        total = k.shape[-2]
        back = torch.arange(total - q.shape[-2], total)[:, None] - torch.arange(total)
        bias = self.distance[:, back.clamp(0, CONTEXT - 1)].masked_fill((back < 0) | (back >= CONTEXT), -torch.inf)  # [H, T, P + T]
        following = self._finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
        return following, (k[:, :, 1 - CONTEXT :], v[:, :, 1 - CONTEXT :])

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[.., E] -> [.., R]."""
        return states @ self.output.T

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = self.config.attention_heads
        return tuple(part.view(*part.shape[:-1], heads, -1).transpose(-2, -3) for part in qkv.chunk(3, -1))  # [B, H, T, D]

    def _finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + self.out(attended.transpose(-2, -3).flatten(-2))
        gate, up = self.up(self.between(x)).chunk(2, -1)
        following: torch.Tensor = self.last(x + self.down(F.silu(gate) * up))
        return following


Heads = MedusaHeads | EagleHead
KINDS: dict[str, type[MedusaHeads] | type[EagleHead]] = {"medusa": MedusaHeads, "eagle": EagleHead}


def save_heads(heads: Heads, path: Path) -> None:
    """One safetensors file, replaced at once."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in heads.state_dict().items()}
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
    try:
        save_file(tensors, temporary, metadata={"agentkit_heads": json.dumps({"format": FORMAT, **asdict(heads.config)})})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_heads(path: Path, kind: str, model: str) -> Heads:
    """Heads as `save_heads` wrote them, for inference.

    Raises EngineError if the file is not one, holds another kind, or was trained for another model than the one with digest `model`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("agentkit_heads", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise EngineError(f"{path} is not a file of trained heads: {error}") from error
    if notes.pop("format", None) != FORMAT:
        raise EngineError(f"{path} holds no heads of this version's format; train them again with: agentkit train {kind}")
    config = HeadsConfig(**notes)
    if config.kind != kind:
        raise EngineError(f"{path} holds {config.kind} heads, not {kind}; use speculation={config.kind!r}")
    if config.model != model:
        raise EngineError(f"the heads in {path} were trained for other weights than this model's; train them with: agentkit train {kind}")
    heads = KINDS[kind](config, tensors["ids"], tensors["output"])
    heads.load_state_dict(tensors)
    heads.requires_grad_(False)
    return heads.eval()
