"""From Engine(speculation=...) to a Speculator; the settings are listed in setting.py.

Input: the setting, the loaded target and its pool. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentkit.cache_folder import cache_root
from agentkit.engine.device.runner import runner_for
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.speculation.draft_model import DraftModelProposer
from agentkit.engine.speculation.lookahead import LookaheadProposer
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.proposer import Proposer
from agentkit.engine.speculation.self_draft import SelfDraftProposer, first_layers
from agentkit.engine.speculation.speculator import Speculator
from agentkit.errors import EngineError

if TYPE_CHECKING:
    from agentkit.engine.models.loader import LoadedModel


def speculator_for(setting: str, target: LoadedModel, pool: KVPool, digest: Callable[[], str], cache_dir: Path | None = None) -> Speculator | None:
    """None for "off".   digest: of the target's weights, asked for only where heads are loaded.

    Raises ModelNotFound, or EngineError where a draft model or heads do not belong to the target.
    """
    name, _, value = setting.partition(":")
    if name == "off":
        return None
    return Speculator(_proposer(name, value, target, pool, digest, cache_dir), Pace(StepCosts()))


def heads_file(kind: str, digest: str, cache_dir: Path | None = None) -> Path:
    """Where trained heads of a model are kept."""
    return cache_root(cache_dir) / "heads" / digest / f"{kind}.safetensors"


def _proposer(name: str, value: str, target: LoadedModel, pool: KVPool, digest: Callable[[], str], cache_dir: Path | None) -> Proposer:
    tokenizer, decoder = target.tokenizer, target.model
    size = target.token_count
    if name in ("auto", "ngram"):
        return NgramProposer()
    if name == "lookahead":
        return LookaheadProposer()
    if name == "draft":
        return _draft_model(value, target, size, cache_dir)
    if not isinstance(decoder, Decoder):
        how = "use speculation='auto', 'ngram', 'lookahead' or 'draft:MODEL'"
        raise EngineError(f"speculation={name!r} needs the native decoder, and {target.name!r} ({target.config.architecture}) runs through transformers; {how}")
    if name == "self":
        model = first_layers(decoder, int(value) if value else max(1, target.config.num_layers // 3))
        return SelfDraftProposer(model, pool, decoder.device, size, tokenizer.stop_token_ids)
    return _trained(name, value, target.name, decoder, digest(), cache_dir)


def _draft_model(spec: str, target: LoadedModel, size: int, cache_dir: Path | None) -> Proposer:
    from agentkit.engine.models.loader import load_model

    draft = load_model(spec, device=str(target.model.device), dtype=str(target.model.dtype).removeprefix("torch."), cache_dir=cache_dir)
    theirs, ours = draft.tokenizer.token_bytes, target.tokenizer.token_bytes
    differ = next((i for i in range(min(size, len(theirs))) if theirs[i] != ours[i]), None)
    if differ is not None or len(theirs) < size:
        what = f"token {differ} is not the same" if differ is not None else f"it has {len(theirs)} tokens, not {size}"
        raise EngineError(f"{spec!r} cannot draft for {target.name!r}: their vocabularies differ ({what}); choose a model of the same family")
    c = draft.config
    shape, reach = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, draft.model.dtype, draft.model.device), reach_of("auto", c)
    groups = by_window(reach, c.num_layers, c.max_position)
    pool = KVPool(shape, 4 * groups.most_pages(c.max_position) * shape.page_bytes(groups), reach=reach, groups=groups)
    return DraftModelProposer(runner_for(draft.model, pool), pool, size, target.tokenizer.stop_token_ids, c.max_position)


def _trained(kind: str, value: str, target: str, decoder: Decoder, digest: str, cache_dir: Path | None) -> Proposer:
    from agentkit.engine.speculation.heads import EagleHead, MedusaHeads, load_heads
    from agentkit.engine.speculation.trained import EagleProposer, MedusaProposer

    path = Path(value).expanduser() if value else heads_file(kind, digest, cache_dir)
    if not path.is_file():
        raise EngineError(f"there are no {kind} heads for {target!r} at {path}; train them with: agentkit train {kind} {target}")
    heads = load_heads(path, kind, digest).to(decoder.device)
    if isinstance(heads, MedusaHeads):
        return MedusaProposer(heads)
    assert isinstance(heads, EagleHead)
    return EagleProposer(heads, decoder.embedding)
