"""From what a caller asked for to requests, and from how they ended to what the caller gets.

Inputs: prompts, sampling parameters and constraints; outcomes of the scheduler. Everything that can be refused is refused here,
before anything is queued: contexts that are too long, budgets that are too small, ids outside the vocabulary.
This module knows nothing of threads or scheduling.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkit.engine.adapters.loaded import Adapters
from agentkit.engine.config import SamplingParams
from agentkit.engine.constraint import Constraint
from agentkit.engine.kv import KVPool
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.models.progress import one_stage
from agentkit.engine.request import Generation, Outcome, Request, Sink
from agentkit.engine.sampling import philox
from agentkit.engine.text import OutputText
from agentkit.errors import ContextTooLong, EngineError, GenerationTimeout, GenerationTruncated, GrammarViolation
from agentkit.grammars import Vocabulary

if TYPE_CHECKING:
    from agentkit.engine.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]
_LOOK_BACK = 64  # tokens at the prompt's end in which stop_outside may have begun


class Intake:
    """Makes requests for one engine. seed: origin of the seeds of requests that bring none; None: from the operating system.

    max_context: tokens of prompt and output together.   adapters: what requests can choose.   progress: told when kernels are compiled.
    load_s: for usage, set later.
    """

    def __init__(
        self, loaded: LoadedModel, pool: KVPool, adapters: Adapters, *, seed: int | None, max_context: int, progress: Callable[..., None] | None
    ) -> None:
        self._loaded = loaded
        self._adapters = adapters
        self._pool = pool
        self._seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self._max_context = max_context
        self._progress = progress
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self.load_s = 0.0
        self._counter = itertools.count()
        self._wants_bos = _puts_bos(loaded.tokenizer)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary as grammars see it, as wide as the model's logits; made at its first use."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                _compile_kernels_once(self._progress)
                tokenizer = self._loaded.tokenizer
                width = max(self._loaded.config.vocab_size, len(tokenizer.token_bytes))
                self._vocabulary = Vocabulary.from_tokenizer(tokenizer.raw, list(tokenizer.stop_token_ids), width)
            return self._vocabulary

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Raises ValueError for an empty one and for ids that the model does not have, TypeError for neither text nor ids."""
        ids = self._loaded.tokenizer.encode(prompt, special=True, bos=self._wants_bos) if isinstance(prompt, str) else _token_ids(prompt)
        if not ids:
            raise ValueError("the prompt is empty; give at least one token")
        size = self._loaded.config.vocab_size
        wrong = next((t for t in ids if not 0 <= t < size), None)
        if wrong is not None:
            raise ValueError(f"the prompt contains the token id {wrong}, but this model's ids go from 0 to {size - 1}")
        return ids

    def request(self, prompt: list[int], params: SamplingParams, constraint: Constraint | None, sinks: Sequence[Sink]) -> Request:
        """One request per sink, for the same prompt: the first, with the others as its siblings.

        Raises ContextTooLong, BudgetTooSmall, AdapterNotFound, and ValueError for a biased token that the model does not have.
        """
        self.check_size(prompt, params.max_tokens)
        if params.n > 1 and self._pool.reach.budget is not None:
            raise ValueError(f"n={params.n}: outputs cannot share their prompt with kv=H2O(...), which keeps other parts of it for each; ask {params.n} times")
        wrong = next((t for t in params.logit_bias if t >= self._loaded.config.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"logit_bias has the token id {wrong}, but this model's ids go from 0 to {self._loaded.config.vocab_size - 1}")
        adapter = self._adapters.use(params.adapter, params.adapter_scale)
        number = next(self._counter)
        seed = self._derive(self._seed, number, 1) if params.seed is None else params.seed
        requests = []
        for place, sink in enumerate(sinks):
            matcher = None
            if constraint is not None:
                matcher = constraint.grammar.matcher(self.vocabulary)
                if params.budget_guard:
                    matcher.check_budget(params.max_tokens)
                else:
                    matcher.completion_tokens()  # can the vocabulary spell it at all?
            output = self._output(prompt, params)
            own = seed if place == 0 else self._derive(seed, place, 2)
            requests.append(Request(prompt, params, sink, output, seed=own, matcher=matcher, adapter=adapter))
        requests[0].siblings = requests[1:]
        return requests[0]

    def _output(self, prompt: Sequence[int], params: SamplingParams) -> OutputText:
        tokenizer, outside = self._loaded.tokenizer, params.stop_outside
        if outside is None:
            return OutputText(tokenizer.detokenizer(continuation=True), params.stop, params.include_stop)
        marks = {tokenizer.special_tokens[word]: word for word in outside if word in tokenizer.special_tokens}
        inside = self._ends_with(prompt, outside[0], marks)
        return OutputText(tokenizer.detokenizer(continuation=True), params.stop, params.include_stop, outside, inside=inside, marks=marks)

    def _ends_with(self, prompt: Sequence[int], text: str, marks: Mapping[int, str]) -> bool:
        """Whether nothing but blanks comes behind the last `text` in a prompt. marks: token id -> its text, for special tokens."""
        end = ""
        for marked, run in itertools.groupby(prompt[-4 * len(text) - _LOOK_BACK :], marks.__contains__):
            tokens = list(run)
            end += "".join(marks[token] for token in tokens) if marked else self._loaded.tokenizer.decode(tokens, continuation=True)
        _, found, behind = end.rpartition(text)
        return bool(found) and not behind.strip()

    def prefill(self, prompt: list[int], params: SamplingParams) -> Request:
        """A request that only fills the cache; nobody hears of it yet. Raises ContextTooLong, AdapterNotFound."""
        self.check_size(prompt, 0)
        output, adapter = OutputText(self._loaded.tokenizer.detokenizer(continuation=True)), self._adapters.use(params.adapter, params.adapter_scale)
        request = Request(prompt, params, lambda event: None, output, adapter=adapter)
        request.prefill_only = True
        return request

    def conclude(self, outcome: Outcome | BaseException, params: SamplingParams, constraint: Constraint | None) -> Generation:
        """The caller's view of how a request ended. Raises its error, GenerationTimeout or GenerationTruncated."""
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome.finish_reason == "timeout" and not params.allow_truncated:
            raise GenerationTimeout(
                f"timeout={params.timeout:g} s passed after {len(outcome.token_ids)} tokens; allow more time, or pass allow_truncated=True to get the text",
                outcome.text,
            )
        value = None
        if constraint is not None:
            complete = outcome.complete or (outcome.stop_string is not None and self._accepts(constraint, outcome.text))
            if not complete and not params.allow_truncated:
                how = f"the stop string {outcome.stop_string!r} came" if outcome.stop_string else f"max_tokens={params.max_tokens} was reached"
                raise GenerationTruncated(
                    f"{how} before the output satisfied its grammar; leave the budget guard on, or pass allow_truncated=True to get the text", outcome.text
                )
            if complete and constraint.parse is not None:
                value = _value(constraint.parse, outcome.text)
        usage = replace(outcome.usage, load_s=self.load_s)
        return Generation(outcome.text, value, outcome.token_ids, outcome.finish_reason, usage, outcome.stop_string, outcome.logprobs)

    def check_size(self, prompt: list[int], max_tokens: int) -> None:
        """Raises ContextTooLong for what does not fit into the context, or into memory."""
        total = len(prompt) + max_tokens
        if total > self._max_context:
            room = self._max_context - len(prompt)
            advice = f"shorten the prompt or lower max_tokens to {room}" if room > 0 else "shorten the prompt"
            what = f"{len(prompt)} prompt tokens and max_tokens={max_tokens} exceed the context of {self._max_context} tokens"
            raise ContextTooLong(total, self._max_context, f"{what}; {advice}")
        if not self._pool.fits(total):
            pool, limit = self._pool, self._pool.capacity
            window = any(group.kept is not None for group in pool.groups.groups)
            need = f"{pool.peak(total)} pages of keys and values at a time{', their windows and room for the next chunk' if window else ''}"
            what = f"{len(prompt)} prompt tokens and max_tokens={max_tokens} need {need}, and there are {pool.page_count}, enough for {limit} tokens"
            raise ContextTooLong(total, limit, f"{what}; raise kv_memory to {pool.peak(total) * pool.page_bytes} bytes, or lower max_tokens")

    def _accepts(self, constraint: Constraint, text: str) -> bool:
        matcher = constraint.grammar.matcher(self.vocabulary)
        try:
            matcher.accept_bytes(text.encode())
        except GrammarViolation:
            return False
        return matcher.is_accepting

    @staticmethod
    def _derive(seed: int, number: int, stream: int) -> int:
        first, second, *_ = philox(seed, number, stream=stream)
        return first << 32 | second


def _token_ids(prompt: Any) -> list[int]:
    """A sequence of integers, of Python's own or of an array's, as a list."""
    try:
        if isinstance(prompt, bytes | bytearray | Mapping | Set):
            raise TypeError(f"it is {type(prompt).__name__}")
        tokens = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
        if any(isinstance(token, bool) for token in tokens):
            raise TypeError("True and False are no token ids")
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise TypeError(f"the prompt must be a text or a sequence of token ids ({error}); decode bytes first, and pass messages to chat()") from error


def stable_prefix(encode: Callable[..., list[int]], messages: Sequence[Any], tools: Sequence[Any] | None) -> list[int]:
    """The tokens with which every prompt begins that goes on after these messages.

    Behind instructions comes a user's message: what two different ones share is fixed, whatever the template puts around it.
    """
    if all(m.get("role") in ("system", "developer") for m in messages):
        a, b = (encode([*messages, {"role": "user", "content": text}], tools=tools) for text in ("a", "b"))
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return a[:same]
    return encode(messages, tools=tools, add_generation_prompt=False)


def _puts_bos(tokenizer: Tokenizer) -> bool:
    """Whether the model's own tokenizer begins every text with its first token (Llama and Gemma do, SmolLM and Qwen do not)."""
    first = tokenizer.raw.encode("a", add_special_tokens=True).ids[:1]
    return tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]


def _compile_kernels_once(progress: Callable[..., None] | None) -> None:
    """Compiles the grammar kernels if this machine has not yet, showing that it does: it takes about half a minute on one core."""
    from agentkit.grammars.warmup import compile_kernels, kernels_cached

    if not kernels_cached():
        with one_stage("compiling the kernels of grammars (once on this machine)", progress):
            compile_kernels()


def _value(parse: Callable[[str], Any], text: str) -> Any:
    """Raises EngineError for an output that its grammar allows and Python's parsers do not follow."""
    try:
        return parse(text)
    except RecursionError as error:
        raise EngineError(
            f"the output nests deeper than it can be parsed ({text[:40]!r}...); bound the schema's depth, lower max_tokens, or give the schema as grammar= "
            "(Grammar.from_json_schema) to get the text alone"
        ) from error
