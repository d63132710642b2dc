"""What an engine and a request are told to do: frozen values, checked once when they are made.

Input: plain numbers and strings from the caller. Every value is checked here and nowhere else, so the rest of the
engine can trust them. This module knows nothing of models, tensors or grammars.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from agentkit.engine.checks import check_seed, flag, integer, number, plain, plain_numbers
from agentkit.engine.kv_policy import FORMATS, H2O, Policy, Streaming, Window, check_format
from agentkit.engine.speculation.setting import check_speculation
from agentkit.errors import InvalidOption, did_you_mean

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: the quotient of two logits would leave the range of a float long before."""
MAX_LOGPROBS = 1000
MAX_BIAS = 1e9
"""Of a bias or penalty. What is added to a logit, as often as tokens fit into a context, must stay a finite float32."""
MOST_BYTES = 1 << 62
"""More than any machine has, and still a size to ask for."""
CONSTRAINTS = ("schema", "regex", "grammar", "choices")
"""Options of a generation that are no SamplingParams, for messages."""
MAX_THREADS = 1024
"""More than any processor runs at once; a number by mistake would leave the process unable to start a thread."""


def _stop_strings(stop: Any) -> tuple[str, ...]:
    if not isinstance(stop, str | Iterable):
        raise InvalidOption(f"stop must be a string or a sequence of strings, not {stop!r}; leave it out, or pass (), for none")
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidOption(f"stop must be a string or a sequence of strings, not one with {text!r}")
        if not text:
            raise InvalidOption("stop contains an empty string, which would end every output at once; leave it out")
    return texts


def _two_texts(name: str, texts: Any) -> tuple[str, str] | None:
    if texts is None:
        return None
    if isinstance(texts, str) or not isinstance(texts, Sequence) or len(texts) != 2 or not all(isinstance(t, str) and t for t in texts) or texts[0] == texts[1]:
        raise InvalidOption(f'{name} must be two different texts, such as ("<think>", "</think>"), or None, not {texts!r}')
    return texts[0], texts[1]


def _biases(biases: Any) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise InvalidOption(f"logit_bias must map token ids to numbers, not be {biases!r}")
    numbers = {plain(token): plain(bias) for token, bias in biases.items()}
    for token, bias in numbers.items():
        integer("logit_bias: a token id", token, 0)
        number(f"logit_bias: the bias of token {token}", bias, -MAX_BIAS, MAX_BIAS)
    return numbers


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    temperature: 0 (or below 1e-5) is greedy: the most likely allowed token, the lowest id on ties.
    top_k: keep the k most likely allowed tokens; 0: all.          top_p: keep the smallest set with this probability.
    min_p: drop tokens less likely than min_p times the likeliest. All three see masked, penalised logits.
    repetition_penalty: > 1 makes tokens of prompt and output less likely again (CTRL, arXiv:1909.05858); 1: off.
    presence_penalty, frequency_penalty: subtracted from the logit of a token that is in the output, once and per occurrence.
    logit_bias: token id -> number added to its logit; a bias never lifts what a grammar forbids.
    logprobs: None: off; k: Generation.logprobs has, per token, its log-probability and the k likeliest (0: only its own).
    n: outputs for one prompt, which is computed once; the others are in Generation.alternatives. Needs a temperature.
    max_tokens: output tokens at most; the stop token is not counted.
    seed: fixes this request's random stream, whatever runs beside it; None: a fresh one.
    stop: texts that end the output; include_stop keeps the matched one.
    stop_outside: two texts between which stop strings do not count, such as ("<think>", "</think>") so that reasoning is not cut; they may
        be special tokens. A prompt that ends with the first has begun that part.
    budget_guard: near max_tokens allow only what can still finish (requests with a grammar).
    allow_truncated: an output that a grammar did not complete is returned with value None instead of raising GenerationTruncated,
        and one cut by `timeout` with finish_reason "timeout" instead of raising GenerationTimeout.
    timeout: seconds from submission, waiting in the queue included; after that GenerationTimeout is raised. None: no limit.
    priority: the higher is served first, and may push out running requests of lower priority (they go on later); default 0.
    cache_salt: only requests with the same salt share computed prefixes, so that no tenant can tell by timing what another one asked.
    adapter: the name of a loaded low-rank adapter (Engine.load_adapter); None: the base model.     adapter_scale: multiplies what it adds; 0 is the
        base model, exactly.

    Raises ValueError for anything out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    n: int = 1
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_outside: tuple[str, str] | None = None
    budget_guard: bool = True
    allow_truncated: bool = False
    timeout: float | None = None
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    adapter_scale: float = 1.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        number("temperature", self.temperature, 0.0, math.inf, hint="0 is greedy")
        integer("top_k", self.top_k, 0, hint="0 switches it off")
        number("top_p", self.top_p, 0.0, 1.0, open_low=True, hint="1 switches it off")
        number("min_p", self.min_p, 0.0, 1.0, hint="0 switches it off")
        number("repetition_penalty", self.repetition_penalty, 1 / MAX_BIAS, MAX_BIAS, hint="1 switches it off")
        for name in ("presence_penalty", "frequency_penalty"):
            number(name, getattr(self, name), -MAX_BIAS, MAX_BIAS, hint="0 switches it off")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.logprobs is not None:
            integer("logprobs", self.logprobs, 0, MAX_LOGPROBS, hint="None switches them off")
        integer("n", self.n, 1)
        if self.n > 1 and self.greedy:
            raise InvalidOption(f"n={self.n} with temperature={self.temperature:g} would give the same output {self.n} times; raise the temperature")
        integer("max_tokens", self.max_tokens, 1)
        check_seed(self.seed)
        if self.timeout is not None:
            number("timeout", self.timeout, 0.0, math.inf, open_low=True, hint="seconds; None means no limit")
        integer("priority", self.priority, -(1 << 31), (1 << 31) - 1, hint="higher runs first")
        for name in ("cache_salt", "adapter"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidOption(f"{name} must be a string or None, not {getattr(self, name)!r}")
        number("adapter_scale", self.adapter_scale, -MAX_BIAS, MAX_BIAS, hint="1 is the adapter as it was trained, 0 the base model")
        if self.adapter is None and self.adapter_scale != 1.0:
            raise InvalidOption(f"adapter_scale={self.adapter_scale:g} has no adapter to scale; name one with adapter=, or leave it out")
        for name in ("include_stop", "budget_guard", "allow_truncated"):
            flag(name, getattr(self, name))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_outside", _two_texts("stop_outside", self.stop_outside))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True)
class EngineConfig:
    """How one engine is set up.

    model: name, folder, file or hub id.      device: "auto", "cpu", "cuda" or "cuda:N".
    speculation: who guesses tokens ahead, "off", "auto" or a setting of speculation/setting.py. Outputs are the same with any.
    weights, activations, kv: "auto", or one of WEIGHTS, ACTIVATIONS, KV below, or for kv a policy: Window, Streaming, H2O (kv_policy.py); anything
        else is refused by name.
        weights: "fp32" as loaded; "fp16" half-precision matrices (on a GPU the whole model); "int8", "int4" blocks of 8 or 4 bits, as a GGUF
        file holds them or else rounded (see weights/choose.py); "auto" is the blocks of a quantised file where the processor runs them
        fast, else float32 on the CPU and bfloat16 on a GPU.
        activations: what blocks are multiplied by, rounded by groups of 32: "int16" ("auto"; as good as float32) or, for matrices of 4
        bits, "int8", which is faster and costs some quality (docs/performance.md). Matrices of 8 bits and the head always meet 16.
        attention: "flash", or "standard": the scores of all pairs of tokens as one matrix, for comparison; slow, and memory grows with the square.
        kv: how keys and values are held; "auto" is half precision beside matrices in blocks, else the model's own type. "int8", "fp8":
        8 bits with a scale per position and head (see kv_format.py), half the memory of 16 bits.
    seed: origin of the seeds of requests that bring none; None: from the operating system.
    max_context: tokens per request (prompt and output), at most what the model was trained for; None: that, or with kv=Streaming(...) no limit.
    threads: CPU threads of the engine; None: what torch chooses.
    max_running: requests that make progress together.             max_queue: further ones that may wait.
    step_tokens: tokens computed per step while requests only prefill; mixed_step_tokens: while others decode
        (a long prompt then delays their next token by one such chunk at most). On a GPU, for which that is little work, 16 times as many.
    kv_memory: memory for keys and values, running and cached together: bytes (an int), or a fraction of what is free at the start
        (a float up to 1.0). None: a quarter of it, but no more than twice what max_running requests of full length need.
    prefix_caching: False computes every prompt anew.
    prefix_file: where pinned prefixes are kept between processes; read at the start, written over when something is pinned that it does not hold.
    deterministic: equal logits, bit by bit, whatever runs beside a request and however its prompt is cut or cached. Needs kernels
        whose results do not depend on that: weights="int8" or "int4" on the CPU; refused elsewhere.
    cuda_graphs: on a GPU, requests that decode do so in captured steps, masks and sampling included, which the host reads a step late (see
        device/decoding.py). False: every step goes over the host.
    """

    model: str
    speculation: str = "auto"
    weights: str = "auto"
    activations: str = "auto"
    kv: str | Policy = "auto"
    attention: str = "flash"
    seed: int | None = None
    max_context: int | None = None
    device: str = "auto"
    threads: int | None = None
    cache_dir: str | None = None
    max_running: int = 16
    max_queue: int = 256
    step_tokens: int = 512
    mixed_step_tokens: int = 128
    kv_memory: int | float | None = None
    prefix_caching: bool = True
    prefix_file: str | None = None
    deterministic: bool = False
    cuda_graphs: bool = True

    WEIGHTS = ("auto", "fp32", "fp16", "int8", "int4")
    ACTIVATIONS = ("auto", "int16", "int8")
    ATTENTION = ("flash", "standard")
    KV = FORMATS

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_speculation(self.speculation)
        for name, allowed in (("weights", self.WEIGHTS), ("activations", self.ACTIVATIONS), ("attention", self.ATTENTION)):
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidOption(f"{name}={value!r} is not available; choose one of {', '.join(map(repr, allowed))}")
        if not isinstance(self.kv, Window | Streaming | H2O):
            check_format(self.kv)
        if isinstance(self.kv, H2O):
            self._check_h2o()
        check_seed(self.seed)
        if isinstance(self.kv_memory, float):
            number("kv_memory", self.kv_memory, 0.0, 1.0, open_low=True, hint="a float is a fraction of the free memory; give bytes as an int")
        elif self.kv_memory is not None:
            integer("kv_memory", self.kv_memory, 1, MOST_BYTES, hint="bytes, or a float for a fraction of the free memory")
        for name, high in (("max_context", None), ("threads", MAX_THREADS)):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 1, high, hint="None lets the engine choose")
        for name in ("max_running", "step_tokens", "mixed_step_tokens"):
            integer(name, getattr(self, name), 1)
        integer("max_queue", self.max_queue, 0)
        if self.prefix_file is not None and not self.prefix_caching:
            raise InvalidOption("prefix_file keeps cached prefixes, and prefix_caching=False keeps none; leave one of them out")
        for name in ("prefix_caching", "deterministic", "cuda_graphs"):
            flag(name, getattr(self, name))
        device: Any = self.device
        if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise InvalidOption(f'device must be "auto", "cpu", "cuda" or "cuda:N", not {self.device!r}')

    def _check_h2o(self) -> None:
        """What a request keeps under H2O depends on what it has read since, so nothing can be shared, guessed at, or promised to the bit."""
        if self.prefix_caching:
            raise InvalidOption(f"kv={self.kv}: what is kept depends on the whole text, so no prefix can be shared; pass prefix_caching=False with it")
        if self.speculation not in ("auto", "off"):
            raise InvalidOption(f"kv={self.kv}: guesses would count as attention paid, so speculation={self.speculation!r} is not available; leave it out")
        if self.deterministic:
            raise InvalidOption(f"kv={self.kv} sums attention by torch, whose last digits depend on the batch, so deterministic=True is not available")


class SamplingOptions(TypedDict, total=False):
    """SamplingParams as keyword arguments; stop may be one string or any sequence of them."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    n: int
    max_tokens: int
    seed: int | None
    stop: str | Sequence[str]
    include_stop: bool
    stop_outside: tuple[str, str] | None
    budget_guard: bool
    allow_truncated: bool
    timeout: float | None
    priority: int
    cache_salt: str | None
    adapter: str | None
    adapter_scale: float


class GenerateOptions(SamplingOptions, total=False):
    """Everything that `Engine.generate` takes beside the prompt: see there."""

    schema: Any
    regex: str | None
    grammar: Any
    choices: Sequence[str] | None
    on_event: Callable[[Any], None] | None


def sampling_params(options: SamplingOptions) -> SamplingParams:
    """SamplingParams from keyword arguments. Raises TypeError for an unknown one, listing those there are, and ValueError for a bad value."""
    known = [f.name for f in fields(SamplingParams)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        known = [*CONSTRAINTS, *known]
        raise TypeError(f"unknown generation option {unknown[0]!r}.{did_you_mean(unknown[0], known)} Known are {', '.join(known)}")
    return SamplingParams(**options)  # type: ignore[arg-type] # stop is brought into shape and checked there
