"""Distils Medusa or EAGLE heads from a model's own generations.

Input: texts that the model wrote (token ids, and where its own part begins) and the loaded model. The target's hidden states over
each text are computed once and kept on disk; then the head is trained on them with AdamW, checked on texts set aside. Every
stage leaves files in one folder and goes on from what it finds there, so an interruption costs at most the last checkpoint.
Losses as in the papers: cross-entropy on the tokens that came (Medusa-1), smooth L1 on the states plus a tenth of the cross-entropy
(EAGLE). Knows nothing of where the texts come from.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.reference_attention import ReferenceCache
from agentkit.engine.speculation.heads import EagleHead, Heads, HeadsConfig, MedusaHeads, save_heads
from agentkit.errors import EngineError

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""


@dataclass(frozen=True)
class Text:
    """tokens[start:] was written by the model after tokens[:start].   free: which of them a grammar did not force; () for all."""

    tokens: tuple[int, ...]
    start: int
    free: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Plan:
    """vocabulary: R, at most.   epochs over the texts.   held_out: share of texts set aside.   checkpoint: steps between two checkpoints.

    seconds: of training; when they are over it ends where it is.
    """

    vocabulary: int = 8192
    heads: int = 4
    epochs: int = 4
    batch: int = 8
    learning_rate: float = 1e-3
    held_out: float = 0.1
    checkpoint: int = 50
    seed: int = 0
    seconds: float = math.inf


def train_heads(kind: str, decoder: Decoder, digest: str, texts: Sequence[Text], folder: Path, plan: Plan, progress: Progress) -> tuple[Path, list[float]]:
    """Trains and writes `folder/<kind>.safetensors`; returns its path and, for each place ahead, the share of held-out tokens guessed right.

    digest: of the model's weights; the heads are refused for any other model. Raises EngineError if there are too few texts.
    """
    texts = [t for t in texts if len(t.tokens) - t.start >= 4]
    if len(texts) < 10:
        raise EngineError(f"{len(texts)} texts of at least 4 tokens are too few to train on; generate at least 10, better a thousand")
    source = StateFiles(decoder, texts, folder / "states", progress)
    shuffled = list(range(len(texts)))
    random.Random(plan.seed).shuffle(shuffled)
    aside = max(1, int(len(texts) * plan.held_out))
    held, used = shuffled[:aside], shuffled[aside:]
    ids = _draft_vocabulary([texts[i] for i in used], plan.vocabulary)
    config = HeadsConfig(kind, digest, decoder.config.hidden_size, len(ids), plan.heads)
    heads = (MedusaHeads if kind == "medusa" else EagleHead)(config, ids, output_rows(decoder, ids))
    _fit(heads, decoder, source, used, folder / f"{kind}.checkpoint", plan, progress)
    score = _score(heads, decoder, source, held)
    heads.config = replace(config, score=score[0])
    path = folder / f"{kind}.safetensors"
    save_heads(heads, path)
    return path, score


Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""States [N, E] float32 at the positions before a text's own tokens; those tokens, int64 [N], states[j] chose tokens[j]; which were free [N]."""


class StateFiles:
    """The target's hidden states over each text, one file per text, computed at the first use."""

    def __init__(self, decoder: Decoder, texts: Sequence[Text], folder: Path, progress: Progress) -> None:
        self.texts = texts
        self._folder = folder
        self._model = decoder
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(len(texts)):
            progress("hidden states of the texts", i, len(texts))
            if not self._path(i).exists():
                self._compute(i)
        progress("hidden states of the texts", len(texts), len(texts))

    def _path(self, i: int) -> Path:
        return states_file(self._folder, self.texts[i])

    def _compute(self, i: int) -> None:
        text = self.texts[i]
        ids = torch.tensor(text.tokens)
        with torch.inference_mode():
            states = self._model.states(
                ids, torch.arange(len(ids)), ReferenceCache(self._model.config, len(ids), dtype=self._model.dtype), slice(text.start - 1, len(ids) - 1)
            )
        save_states(self._folder, text, states)

    def load(self, i: int) -> Sample:
        """See Sample."""
        text = self.texts[i]
        tokens = torch.tensor(text.tokens[text.start :])
        free = torch.tensor(text.free) if text.free else torch.ones(len(tokens), dtype=torch.bool)
        return torch.load(self._path(i), weights_only=True).float(), tokens, free


def states_file(folder: Path, text: Text) -> Path:
    """Where the states over a text are kept."""
    return folder / f"{hashlib.blake2b(repr((text.start, text.tokens)).encode(), digest_size=12).hexdigest()}.pt"


def save_states(folder: Path, text: Text, states: torch.Tensor) -> None:
    """states [N, E] at the positions before the text's own tokens."""
    path = states_file(folder, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(states.half(), temporary)
    temporary.replace(path)


def output_rows(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """Rows [R, E] float32 of the output layer, whatever its representation: it is linear, and the identity gives its columns."""
    if decoder.config.tie_embeddings:
        return decoder.embedding[ids].float()
    with torch.inference_mode():
        return decoder.head(torch.eye(decoder.config.hidden_size, dtype=decoder.dtype)).T[ids].float().contiguous()


def _draft_vocabulary(texts: Sequence[Text], size: int) -> torch.Tensor:
    counts = Counter(token for text in texts for token in text.tokens[text.start :])
    counts.update({token: 0 for text in texts for token in text.tokens})
    return torch.tensor(sorted(token for token, _ in counts.most_common(size)))


def _fit(heads: Heads, decoder: Decoder, source: StateFiles, used: Sequence[int], checkpoint: Path, plan: Plan, progress: Progress) -> None:
    optimizer = torch.optim.AdamW(heads.parameters(), lr=plan.learning_rate, weight_decay=0.01)
    steps = list(_batches(used, plan))
    names = [states_file(Path(), source.texts[i]).name for i in used]
    key = hashlib.blake2b(repr((names, replace(plan, seconds=0))).encode(), digest_size=12).hexdigest()
    done = _resume(heads, optimizer, checkpoint, key)
    end = time.perf_counter() + plan.seconds
    places = torch.full((decoder.config.vocab_size,), -1).index_put((heads.ids,), torch.arange(len(heads.ids)))  # token -> row of the draft vocabulary
    for at in range(done, len(steps)):
        if time.perf_counter() > end:
            break
        for group in optimizer.param_groups:  # warm-up, then a cosine
            group["lr"] = plan.learning_rate * min(1.0, (at + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * at / len(steps)))
        optimizer.zero_grad()
        losses = [_loss(heads, decoder, source.load(i), places) for i in steps[at]]
        loss = torch.stack(losses).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        progress(f"training, loss {loss.item():.3f}", at + 1, len(steps))
        if (at + 1) % plan.checkpoint == 0:
            temporary = checkpoint.with_suffix(".tmp")
            torch.save({"key": key, "heads": heads.state_dict(), "optimizer": optimizer.state_dict(), "done": at + 1}, temporary)
            temporary.replace(checkpoint)
    heads.eval()


def _batches(used: Sequence[int], plan: Plan) -> Iterator[list[int]]:
    rng = random.Random(plan.seed + 1)
    for _ in range(plan.epochs):
        order = list(used)
        rng.shuffle(order)
        yield from (order[i : i + plan.batch] for i in range(0, len(order), plan.batch))


def _resume(heads: Heads, optimizer: torch.optim.Optimizer, checkpoint: Path, key: str) -> int:
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    if saved.get("key") != key:
        return 0  # of other texts or another plan
    heads.load_state_dict(saved["heads"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["done"])


def _loss(heads: Heads, decoder: Decoder, sample: Sample, places: torch.Tensor) -> torch.Tensor:
    states, tokens, free = sample
    rows = places[tokens].masked_fill(~free, -1)  # -1: nothing to guess, or not in the draft vocabulary
    if isinstance(heads, MedusaHeads):
        logits = heads(states)  # [heads, N, R]; states[j] chose tokens[j], so head h guesses tokens[j + 1 + h]
        parts = [F.cross_entropy(logits[h, : len(rows) - 1 - h], rows[1 + h :], ignore_index=-1) for h in range(min(len(logits), len(rows) - 1))]
        return torch.stack([part.nan_to_num() for part in parts]).mean()
    following, _ = heads(states[None, :-1], decoder.embedding[tokens[:-1]][None].float())
    near = F.smooth_l1_loss(following[0], states[1:])
    return near + 0.1 * F.cross_entropy(heads.logits(following[0]), rows[1:], ignore_index=-1).nan_to_num()


def _score(heads: Heads, decoder: Decoder, source: StateFiles, held: Sequence[int]) -> list[float]:
    """Share of held-out tokens guessed right, by place ahead (EAGLE: the first place only, from true states)."""
    right: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for i in held:
        states, tokens, free = source.load(i)
        with torch.inference_mode():
            if isinstance(heads, MedusaHeads):
                guesses = heads.ids[heads(states).argmax(-1)]
            else:
                guesses = heads.ids[heads.logits(heads(states[None, :-1], decoder.embedding[tokens[:-1]][None].float())[0][0]).argmax(-1)][None]
        for place, guess in enumerate(guesses):
            wanted, asks = tokens[1 + place :], free[1 + place :]
            right[place] += int(((guess[: len(wanted)] == wanted) & asks).sum())
            asked[place] += int(asks.sum())
    return [right[place] / max(1, asked[place]) for place in sorted(asked)]
