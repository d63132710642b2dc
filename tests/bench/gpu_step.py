"""Sections of gpu.py on the decode step as a whole: masks, sampling and grammars on the device, captured and not.

Inputs: a Setup, a time box, and a model for the steps. The vocabulary is made up: short random words, as many as Qwen2 has tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch

from agentkit.engine.config import SamplingParams
from agentkit.engine.device.beside import Beside
from agentkit.engine.device.capture import Graphs
from agentkit.engine.device.decoder import DeviceDecoder
from agentkit.engine.device.step import Bucket, DeviceStep
from agentkit.engine.kernels.gpu import sampler, sampler_reference
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.choose import step_kernels
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kernels.gpu.sampling_batch import Draw, Sampled, SamplingBatch
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.models.decoder import Decoder
from agentkit.grammars import Grammar, Vocabulary
from agentkit.grammars.device import Pushdown
from agentkit.grammars.kernels import pushdown, pushdown_reference
from agentkit.grammars.kernels.tables import FINE, States, Tables
from agentkit.grammars.place import Place
from tests.bench.gpu_kit import Box, Figures, Setup, cache_for, clock, replayed, spans_for

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
TEXT = Grammar.from_regex("[a-z ]*!")
OBJECT = Grammar.from_json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }
)


@cache
def vocabulary(size: int) -> Vocabulary:
    """All bytes, random words, and a stop token."""
    rng, texts = random.Random(0), {bytes([b]) for b in range(256)}
    while len(texts) < size - 1:
        texts.add("".join(rng.choices('etaoinshrdlu   .,:"{}[]0123', k=rng.randint(2, 9))).encode())
    return Vocabulary([*sorted(texts), None], [size - 1])


def sampling(setup: Setup, box: Box) -> None:
    """Seconds of the sampler over masked logits, per kind of draw; and of a sort, which is what it does without."""
    found, width = box.rows, setup.model["vocabulary"]
    for size in setup.pick((64, 1, 8, 256), (2,)):
        generator = torch.Generator(setup.device).manual_seed(0)
        logits = 3 * torch.randn(size, width, generator=generator, device=setup.device)
        bank = torch.randint(-(1 << 31), (1 << 31) - 1, (4, (width + 31) // 32), generator=generator, device=setup.device, dtype=torch.int32)
        rows = (torch.arange(size, device=setup.device, dtype=torch.int32) % 5) - 1
        row: Figures = {"batch": size, "sort_s": clock(setup, partial(logits.sort, 1, descending=True))}
        found.append(row)
        for name, options in SAMPLING.items():
            if box.left(f"{name} of {size}"):
                draws = [Draw(SamplingParams(**options), seed) for seed in range(size)]
                batch, out, want = SamplingBatch.of(draws, width, setup.device), Sampled.empty(size, setup.device), Sampled.empty(size, setup.device)
                row[f"{name}_s"] = replayed(setup, partial(sampler.sample, logits, bank, rows, batch, out, vocab_size=width))
                sampler_reference.sample(logits, bank, rows, batch, want, vocab_size=width)
                row[f"{name}_equal"] = float((out.tokens == want.tokens).double().mean())
    wrong = [row for row in found if any(value < 0.97 for key, value in row.items() if key.endswith("_equal"))]
    if wrong:  # of a large batch the last digit of a sum may decide about a token
        raise AssertionError(f"the sampler differs from its reference for {[row['batch'] for row in wrong]} requests")


def masks(setup: Setup, box: Box) -> None:
    """Seconds to build a mask on the device, to find a known one, and to advance; the first checked against the reference."""
    found, words = box.rows, vocabulary(setup.model["vocabulary"])
    for name, grammar in (("text", TEXT), ("object", OBJECT)):
        host, place = _prepared(words, grammar)
        slow, at, one = Tables.of(host, 1, "cpu"), States.empty(1, 64, "cpu"), torch.zeros(2, 1, dtype=torch.int32)
        at.load(0, place)
        pushdown_reference.find_rows(slow, at, *one)
        pushdown_reference.build_rows(slow, at, *one)
        for size in setup.pick((1, 8, 64), (2,)):
            if not box.left(f"{name} of {size}"):
                continue
            tables, states = Tables.of(host, size, setup.device), States.empty(size, 64, setup.device)
            for request in range(size):
                states.load(request, place)
            status, rows = torch.zeros(2, size, dtype=torch.int32, device=setup.device)
            pushdown.find_rows(tables, states, status, rows)
            row: Figures = {"grammar": name, "batch": size}
            found.append(row)
            row["build_s"] = replayed(setup, partial(pushdown.build_rows, tables, states, status, rows))
            row["find_s"] = replayed(setup, partial(pushdown.find_rows, tables, states, status, rows))
            pushdown.build_rows(tables, states, status, rows)
            row["good"] = int(status.max()) == FINE and torch.equal(tables.bank[tables.rows].cpu(), slow.bank[slow.rows])
            if grammar is TEXT:  # a blank leads back to where it came from
                stay = torch.full((size,), words.by_bytes[0][b" "], device=setup.device)
                row["advance_s"] = replayed(setup, partial(pushdown.advance, tables, states, status, stay))
                row["good"] &= int(status.max()) == FINE and states.place(size - 1) == place
    wrong = [row for row in found if not row["good"]]
    if wrong:
        raise AssertionError(f"masks or places differ from their reference: {wrong}")


def _prepared(words: Vocabulary, grammar: Grammar, *, known: bool = False) -> tuple[Pushdown, Place]:
    """A pushdown with all heads of a grammar expanded, and where its texts begin."""
    host, matcher = Pushdown(words, states=4096, rows=64), grammar.matcher(words)
    place = host.place(matcher.arena, matcher.state)
    assert place is not None
    host.expand_near(place, 2000)
    if known:
        host.know(place, matcher.arena, matcher.state)
    return host, place


def _logits(decoder: DeviceDecoder, batch: Batch, parts: Sequence[Part]) -> torch.Tensor:
    return decoder.logits(decoder.states(batch, parts))


def steps(setup: Setup, model: Decoder, box: Box) -> None:
    """Seconds of a whole step: without a grammar, with a known mask, with one that is built each time; captured and not."""
    found, before = box.rows, setup.pick(1024, PAGE + 1)
    words, graphs = vocabulary(model.config.vocab_size), None if setup.smoke else Graphs(setup.device)
    for size in setup.pick((64, 1, 8, 256), (2,)):
        spans = spans_for([(before, 2 * PAGE)] * size)
        decoder = DeviceDecoder(model, cache_for(setup, spans, model.config.num_layers))
        row: Figures = {"batch": size, "context": before}
        found.append(row)
        for kind in ("free", "known mask", "built mask"):
            for graph in setup.pick((True, False), (False,)):
                if not box.left(f"{kind} of {size}"):
                    continue
                host, place = _prepared(words, TEXT, known=kind == "known mask")
                bucket = Bucket(size, len(spans[0].pages), grammars=kind != "free", ranks=False, masses=False)
                step = DeviceStep(
                    bucket, partial(_logits, decoder), step_kernels("triton", setup.device), setup.device,
                    width=model.config.vocab_size, vocab_size=len(words), stops=words.stop_token_ids,
                    tables=Tables.of(host, size, setup.device), graphs=graphs if graph else None,
                )  # fmt: skip
                for number, span in enumerate(spans):
                    step.load(number, 1, before, span.tables, Draw(SamplingParams(temperature=1.0, seed=number), number), None if kind == "free" else place)

                def run(step: DeviceStep = step) -> None:
                    step.launch()
                    step.forget()

                row[f"{kind}, {'graph' if graph else 'eager'}_s"] = clock(setup, run)
                row[f"{kind}, going on"] = int((step.status == FINE).sum())
        free, known = row.get("free, graph_s"), row.get("known mask, graph_s")
        row["constrained_costs"] = None if free is None or known is None else known / free - 1


def mixed(setup: Setup, model: Decoder, box: Box) -> None:
    """Seconds of a step that computes something beside its requests' tokens, and of one that does not: forced text of some, captured, and a prompt's chunk."""
    found, before, run = box.rows, setup.pick(1024, PAGE + 1), setup.pick(12, 3)
    for size in setup.pick((8, 64), (2,)):
        spans = spans_for([(before, 2 * PAGE)] * size + [(0, setup.pick(1024, 40))])
        decoder = DeviceDecoder(model, cache_for(setup, spans, model.config.num_layers))
        *own, prompt = spans
        step = DeviceStep(
            Bucket(size, len(own[0].pages), draws=False), partial(_logits, decoder), step_kernels("triton", setup.device), setup.device,
            width=model.config.vocab_size, vocab_size=model.config.vocab_size, stops=(), graphs=None if setup.smoke else Graphs(setup.device),
        )  # fmt: skip
        runs = [Beside(BatchSpan(span.tables, before, [1] * run), number) for number, span in enumerate(own[: max(1, size // 8)])]
        row: Figures = {"batch": size, "context": before}
        found.append(row)
        kinds: dict[str, Sequence[Beside]] = {"alone": (), f"{len(runs)} runs of {run}": runs, f"a chunk of {len(prompt.tokens)}": [Beside(prompt)]}
        for kind, beside in kinds.items():
            if box.left(f"{kind} of {size}"):

                def launch(beside: Sequence[Beside] = beside, step: DeviceStep = step, loaded: Sequence[BatchSpan] = own[: len(runs)]) -> None:
                    for number, span in enumerate(loaded):
                        step.load(number, 1, before + run - 1, span.tables, Draw(SamplingParams(temperature=0.0)), None)
                    step.launch(beside)
                    step.forget()

                for number, span in enumerate(own):
                    step.load(number, 1, before, span.tables, Draw(SamplingParams(temperature=0.0)), None)
                row[f"{kind}_s"] = clock(setup, launch, 5)
