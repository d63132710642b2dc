"""An engine under test for losslessness: jobs run plainly once, then with each proposer, many at a time; and verifiers that are wrong on purpose.

Speed is no matter here: every guess is taken that a proposer makes, so that much is drafted and much of it is wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from agentkit.engine import Engine, Generation
from agentkit.engine.advance import Advancer
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.request import Request
from agentkit.engine.runner import Logits
from agentkit.engine.speculation.heads import EagleHead, HeadsConfig, MedusaHeads, save_heads
from agentkit.engine.speculation.lookahead import LookaheadProposer
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.training import output_rows
from agentkit.engine.speculation.tree import ROOT, TokenTree
from tests.engine.speculation.test_speculator import Eager

TOGETHER = 16

Job = Callable[[Engine], Generation]


class Credulous(Speculator):
    """A wrong verifier: it keeps every guess that is as likely as `believed`, whatever the model would have chosen."""

    believed = 0.1

    def settle(self, request: Request, tree: TokenTree, rows: Logits, advancer: Advancer) -> list[int]:
        rows = rows.copy()
        for node in range(ROOT, len(tree)):
            likely = torch.from_numpy(rows[node + 1]).softmax(-1)
            for child in tree.children(node)[:1]:
                if likely[tree.tokens[child]] > self.believed:
                    rows[node + 1, tree.tokens[child]] = rows[node + 1].max() + 100.0
        return super().settle(request, tree, rows, advancer)


@dataclass
class Subject:
    """An engine, and what it says without drafts, by the name of a set of jobs.

    heads: files by kind, where heads are not those of agentkit train.   draft: makes a proposer of a draft model.
    """

    engine: Engine
    heads: dict[str, Path]
    draft: Callable[[], Speculator]
    plain: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def speculator(self, setting: str) -> Speculator:
        """Takes every guess, but for "auto", which goes its own pace."""
        if setting == "draft":
            found = self.draft()
        else:
            made = self.engine.speculator(f"{setting}:{self.heads[setting]}" if setting in self.heads else setting)
            assert made is not None
            found = made
        if setting != "auto":
            found.pace, found.most = Eager(found.pace.costs), 3
        if setting == "lookahead":
            found.proposer, found.most = LookaheadProposer(window=2, ngram=3, verify=1), 6  # room for its whole window
        return found

    def check(self, speculator: Speculator, name: str, jobs: Sequence[Job]) -> list[Generation]:
        """Jobs say with drafts what they say without; drafts were made, and some of them were wrong. Returns what was said."""
        if name not in self.plain:
            self.engine.speculate("off")
            self.plain[name] = [g.token_ids for g in self.run(jobs)]
        self.engine.speculate(speculator)
        found = self.run(jobs)
        different = [i for i, (g, wanted) in enumerate(zip(found, self.plain[name], strict=True)) if g.token_ids != wanted]
        assert not different, f"{len(different)} of {len(jobs)} say something else: jobs {different[:20]}"
        drafted, accepted = (sum(getattr(g.usage, name) for g in found) for name in ("drafted_tokens", "accepted_tokens"))
        assert 0 <= accepted < drafted
        return found

    def run(self, jobs: Sequence[Job]) -> list[Generation]:
        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(lambda job: job(self.engine), jobs))


def untrained_heads(engine: Engine, model: Decoder, folder: Path) -> dict[str, Path]:
    """What heads guess matters to speed alone."""
    torch.manual_seed(0)
    ids = torch.arange(min(1024, model.config.vocab_size))
    rows = output_rows(model, ids)
    found = {}
    for kind, make in (("medusa", MedusaHeads), ("eagle", EagleHead)):
        config = HeadsConfig(kind, engine.heads_digest(), model.config.hidden_size, len(ids), attention_heads=8)
        found[kind] = folder / f"{kind}.safetensors"
        save_heads(make(config, ids, rows), found[kind])
    return found


def first_layers_of(folder: Path, target: Path, layers: int) -> None:
    """A model of the first layers of the one in `folder`, of the same vocabulary."""
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, target)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        gone = tuple(f"model.layers.{i}." for i in range(layers, config["num_hidden_layers"]))
        save_file({name: file.get_tensor(name) for name in file.keys() if not name.startswith(gone)}, target / "model.safetensors")  # noqa: SIM118 - no mapping
