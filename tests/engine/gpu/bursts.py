"""Requests over the host and in bursts on a device (here: the same body on the CPU), side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkit.engine.advance import Advancer
from agentkit.engine.device.decoding import DeviceDecoding
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.request import Request
from agentkit.engine.scheduler import Limits, Scheduler
from agentkit.grammars import Grammar, Vocabulary
from tests.engine.tiny import STOP, TOKENS, WIDTH, Bench, TinyDecoder

VOCABULARY = Vocabulary(TOKENS, [STOP], WIDTH)
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "array", "items": {"type": "integer"}}, "c": {"enum": ["abc", "a", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORCED = {
    "type": "object",
    "properties": {"a long name": {"enum": ["one", "two"]}, "another name": {"type": "boolean"}, "and a third one": {"enum": ["x", "yy"]}},
    "required": ["a long name", "another name", "and a third one"],
    "additionalProperties": False,
}
GRAMMARS = {
    "forced": Grammar.from_json_schema(FORCED),
    "object": Grammar.from_json_schema(CLOSED),
    "deep": Grammar.from_json_schema({"type": "array", "minItems": 4, "items": {"anyOf": [{"$ref": "#"}, {"type": "boolean"}, {"type": "integer"}]}}),
    "open": Grammar.from_json_schema({"type": "object", "additionalProperties": {"type": "boolean"}}),
    "ambiguous": Grammar.from_regex("[a-z]*abc[0-9]{2,30}"),
    "text": Grammar.from_regex("(?s)[ -~]{5,40}"),
}


class DeviceBench(Bench):
    """A Bench whose scheduler decodes in bursts. bursts: what each gave.   over_the_host: spans of each step that was computed there.

    kernels: of sampling and grammars.   forward: of the model.
    """

    def __init__(
        self, model: TinyDecoder | Decoder, *, burst: bool = True, limits: Limits | None = None, kernels: str = "reference", forward: str = "reference",
        **options: Any,
    ) -> None:  # fmt: skip
        pool_options = {key: options.pop(key) for key in ("pages", "reach", "groups", "kv", "prefix_caching") if key in options}
        make = options.pop("speculator", None)
        speculator = make() if make is not None else None
        super().__init__(model, runner=lambda m, pool: DeviceRunner(m, pool, forward), limits=limits, speculator=speculator, **pool_options)
        self.bursts: list[Any] = []
        self.over_the_host: list[int] = []
        if burst:
            runner = DeviceRunner(model, self.pool, forward)
            execute = runner.execute

            def counted(spans: Any) -> Any:
                self.over_the_host.append(len(spans))
                return execute(spans)

            runner.execute = counted  # type: ignore[method-assign]
            advancer = Advancer(len(TOKENS), [STOP])
            decoding = DeviceDecoding(runner.forward, self.pool, advancer, width=WIDTH, vocab_size=len(TOKENS), stops=[STOP], kernels=kernels, **options)
            run = decoding.run

            def recorded(*args: Any) -> Any:
                self.bursts.append(run(*args))
                return self.bursts[-1]

            decoding.run = recorded  # type: ignore[method-assign]
            self.scheduler = Scheduler(runner, self.pool, advancer, limits or Limits(), speculator, decoding=decoding)

    @property
    def steps(self) -> int:
        return sum(burst.steps for burst in self.bursts)


def outputs(requests: Sequence[Request]) -> list[Any]:
    return [(r.tokens[len(r.prompt) :], r.outcome.finish_reason if r.outcome else repr(r.error), [lp.token_id for lp in r.logprobs]) for r in requests]


def both(asked: Sequence[dict[str, Any]], seed: int = 0, **options: Any) -> tuple[list[Request], DeviceBench]:
    """Runs the same requests over the host and in bursts, and compares; returns the latter."""
    results = []
    for burst in (False, True):
        shared = {key: options[key] for key in ("reach", "limits", "speculator", "prefix_caching") if key in options}
        bench = DeviceBench(TinyDecoder(seed), **options) if burst else DeviceBench(TinyDecoder(seed), burst=False, **shared)
        requests = []
        for number, ask in enumerate(asked):
            grammar = ask.get("grammar")
            matcher = None if grammar is None else GRAMMARS[grammar].matcher(VOCABULARY)
            prompt = ask.get("prompt", [5 + number, 9, 70])
            requests.append(bench.submit(prompt, matcher, **{k: v for k, v in ask.items() if k not in ("grammar", "prompt")}))
        bench.run(*requests)
        results.append((requests, bench))
    assert outputs(results[0][0]) == outputs(results[1][0])
    return results[1]


SAMPLED = {"temperature": 0.9, "top_p": 0.95}
