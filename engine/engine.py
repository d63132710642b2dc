"""The embedded engine as an application sees it: prompts and constraints in, generations and events out.

Inputs: a model (by name, path or already loaded) and, per request, a prompt, at most one constraint and sampling options.
The model is loaded by the constructor; the engine thread starts with the first request and owns the model from then on.
Callers of `generate` and `stream` wait on their own thread, those of `agenerate` and `astream` await; any number of both
may share one engine. This module knows nothing of tools or agents.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from agentkit.cache_folder import cache_root
from agentkit.engine.advance import Advancer
from agentkit.engine.config import EngineConfig, GenerateOptions, SamplingOptions, SamplingParams, sampling_params
from agentkit.engine.constraint import Constraint, resolve
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.loop import EngineLoop
from agentkit.engine.memory import kv_bytes
from agentkit.engine.models.loader import LoadedModel, load_model
from agentkit.engine.models.progress import progress_or_default
from agentkit.engine.request import Event, FinishEvent, Generation, Outcome, Request, TokenEvent
from agentkit.engine.runner import TorchRunner
from agentkit.engine.sampling import philox
from agentkit.engine.scheduler import Limits, Scheduler
from agentkit.engine.stream import Arrived, EventStream
from agentkit.engine.text import OutputText
from agentkit.engine.weights.choose import with_weights
from agentkit.errors import ContextTooLong, EngineError, GenerationTimeout, GenerationTruncated, GrammarViolation
from agentkit.grammars import Vocabulary
from agentkit.grammars.settings import settings

if TYPE_CHECKING:
    from agentkit.engine.models.chat_template import ChatTemplate
    from agentkit.engine.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class Engine:
    """A language model in this process.

    model: "smollm2-135m", a folder in hub layout, a GGUF file, "org/name", or a LoadedModel.
    speculation, weights, kv, seed, max_context, device, threads, max_running, max_queue, kv_memory, prefix_caching: see EngineConfig.
    cache_dir: where models are kept; None: the user's cache.    progress: told how far fetching and loading are.

    Raises ModelNotFound, or ValueError for a setting out of range. Use as a context manager, or call `close()`.

    Options of generate, stream, agenerate and astream: at most one of schema, regex, grammar, choices (see constraint.resolve),
    and those of SamplingParams by name. All of them raise ContextTooLong, BudgetTooSmall, EngineBusy, GrammarError and
    ValueError before anything runs; NumericalError, GenerationTruncated or EngineError while it runs.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        speculation: str = "auto",
        weights: str = "auto",
        kv: str = "auto",
        seed: int | None = None,
        max_context: int | None = None,
        device: str = "auto",
        threads: int | None = None,
        cache_dir: str | Path | None = None,
        progress: Callable[..., None] | None = None,
        max_running: int = 16,
        max_queue: int = 256,
        kv_memory: int | float | None = None,
        prefix_caching: bool = True,
    ) -> None:
        self.config = EngineConfig(
            model=model.name if isinstance(model, LoadedModel) else str(model),
            speculation=speculation,
            weights=weights,
            kv=kv,
            seed=seed,
            max_context=max_context,
            device=device,
            threads=threads,
            cache_dir=None if cache_dir is None else str(cache_dir),
            max_running=max_running,
            max_queue=max_queue,
            kv_memory=kv_memory,
            prefix_caching=prefix_caching,
        )
        start = time.perf_counter()
        dtype = "auto" if weights == "auto" else "float32"
        loaded = model if isinstance(model, LoadedModel) else load_model(model, device=device, dtype=dtype, cache_dir=cache_dir, progress=progress)
        loaded = with_weights(loaded, weights)
        self._loaded = loaded
        self.model_name = loaded.name
        self._wants_bos = _puts_bos(loaded.tokenizer)
        self._stop_ids = tuple(loaded.tokenizer.stop_token_ids)
        self.max_context = min(loaded.config.max_position, max_context or loaded.config.max_position)
        self._scheduler = _scheduler(loaded, self.config, self._stop_ids)
        self._loop = EngineLoop(self._scheduler, name=f"agentkit-engine-{self.model_name}")
        self._seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self._counter = itertools.count()
        self._progress = progress
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._finalizer = weakref.finalize(self, self._loop.close)  # also at interpreter exit
        settings.suggest_disk(cache_root(cache_dir) / "grammars")
        self.load_s = time.perf_counter() - start

    # -- generation ---------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: Any = None,
        choices: Sequence[str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Generation:
        """Runs one request and returns its outcome. `on_event` sees each event, on the caller's thread.

        Special tokens in a text prompt are recognised: it is the developer's own. Options: see the class.
        """
        with self.stream(prompt, schema=schema, regex=regex, grammar=grammar, choices=choices, **options) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
        assert isinstance(event, FinishEvent)  # a stream without one raises
        return event.generation

    def stream(
        self,
        prompt: Prompt,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: Any = None,
        choices: Sequence[str] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EventStream:
        """TokenEvents as they come, then one FinishEvent. Closing or dropping the stream cancels the request.

        Arguments are checked, and the request is queued, by this call itself rather than by the first `next()`.
        """
        params = sampling_params(options)
        constraint = resolve(schema, regex, grammar, choices)
        arrived: Arrived = queue.SimpleQueue()
        request = self._request(self._encode(prompt), params, constraint, arrived.put)
        self._loop.submit(request)
        return EventStream(request, arrived, lambda outcome: self._generation(outcome, params, constraint))

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: Any = None,
        choices: Sequence[str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Generation:
        """`generate` for async callers; cancelling the task cancels the request. `on_event` runs on the event loop."""
        last: Event | None = None
        async for last in self.astream(prompt, schema=schema, regex=regex, grammar=grammar, choices=choices, **options):
            if on_event is not None:
                on_event(last)
        assert isinstance(last, FinishEvent)
        return last.generation

    async def astream(
        self,
        prompt: Prompt,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: Any = None,
        choices: Sequence[str] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AsyncIterator[Event]:
        """`stream` for async callers; closing the iterator or cancelling the task cancels the request."""
        params = sampling_params(options)
        arrived: asyncio.Queue[TokenEvent | Outcome | BaseException] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def sink(event: TokenEvent | Outcome | BaseException) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, event)
            except RuntimeError:  # the caller's event loop is gone, and with it everyone who could listen
                request.cancel()

        constraint, request = await asyncio.to_thread(self._prepare, prompt, params, schema, regex, grammar, choices, sink)
        try:
            self._loop.submit(request)
            while True:
                event = await arrived.get()
                if isinstance(event, TokenEvent):
                    yield event
                else:
                    yield FinishEvent(self._generation(event, params, constraint))
                    return
        finally:
            request.cancel()

    # -- chat ---------------------------------------------------------------------------------------------------

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True
    ) -> list[int]:
        """Messages through the model's chat template -> token ids. Special tokens come from the template only, never from contents."""
        template = self._loaded.chat_template
        if template is None:
            raise EngineError(f"the model {self.model_name!r} has no chat template; write the prompt yourself and use generate()")
        plain = None if tools is None else [dict(t) for t in tools]
        return template.encode([dict(m) for m in messages], tools=plain, add_generation_prompt=add_generation_prompt)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """The assistant's next message; options as for `generate`."""
        return self.generate(self.encode_chat(messages, tools=tools), **options)

    async def achat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """`chat` for async callers."""
        return await self.agenerate(self.encode_chat(messages, tools=tools), **options)

    # -- parts --------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template; None where it has none."""
        return self._loaded.chat_template

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary as grammars see it, as wide as the model's logits; made at its first use."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                _compile_kernels_once(self._progress)
                tokenizer = self._loaded.tokenizer
                tokens = tokenizer.token_bytes
                width = max(self._loaded.config.vocab_size, len(tokens))
                names = tokenizer.special_tokens
                self._vocabulary = Vocabulary(tokens, self._stop_ids, width, special_tokens=names, tokenizer=tokenizer.raw)
            return self._vocabulary

    def close(self) -> None:
        """Ends running requests with EngineError and the engine thread; the engine cannot be used afterwards."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({self.model_name!r})"

    # -- inside -------------------------------------------------------------------------------------------------

    def _prepare(
        self, prompt: Prompt, params: SamplingParams, schema: Any, regex: str | None, grammar: Any, choices: Sequence[str] | None, sink: Callable[..., None]
    ) -> tuple[Constraint | None, Request]:
        constraint = resolve(schema, regex, grammar, choices)
        return constraint, self._request(self._encode(prompt), params, constraint, sink)

    def _encode(self, prompt: Prompt) -> list[int]:
        ids = self._loaded.tokenizer.encode(prompt, special=True, bos=self._wants_bos) if isinstance(prompt, str) else [int(t) for t in prompt]
        if not ids:
            raise ValueError("the prompt is empty; give at least one token")
        size = self._loaded.config.vocab_size
        wrong = next((t for t in ids if not 0 <= t < size), None)
        if wrong is not None:
            raise ValueError(f"the prompt contains the token id {wrong}, but this model's ids go from 0 to {size - 1}")
        return ids

    def _request(self, prompt: list[int], params: SamplingParams, constraint: Constraint | None, sink: Callable[..., None]) -> Request:
        self._loop.check_usable()
        total = len(prompt) + params.max_tokens
        if total > self.max_context:
            raise ContextTooLong(
                total, self.max_context, f"{len(prompt)} prompt tokens and max_tokens={params.max_tokens} exceed the context of {self.max_context} tokens; "
                + ("shorten the prompt" if len(prompt) >= self.max_context else f"shorten the prompt or lower max_tokens to {self.max_context - len(prompt)}"),
            )  # fmt: skip
        pool = self._scheduler.pool
        if not pool.fits(total):
            need = f"{len(prompt)} prompt tokens and max_tokens={params.max_tokens} need more keys and values than the {pool.capacity} tokens that fit; "
            raise ContextTooLong(total, pool.capacity, need + "raise kv_memory, or lower max_tokens")
        matcher = None
        if constraint is not None:
            matcher = constraint.grammar.matcher(self.vocabulary)
            if params.budget_guard:
                matcher.check_budget(params.max_tokens)
            else:
                matcher.completion_tokens()  # can the vocabulary spell it at all?
        number = next(self._counter)
        first, second, *_ = philox(self._seed, number, stream=1)
        seed = (first << 32 | second) if params.seed is None else params.seed
        output = OutputText(self._loaded.tokenizer.detokenizer(continuation=True), params.stop, params.include_stop)
        return Request(prompt, params, sink, output, seed=seed, matcher=matcher)

    def _generation(self, outcome: Outcome | BaseException, params: SamplingParams, constraint: Constraint | None) -> Generation:
        """The caller's view of how a request ended. Raises its error, or GenerationTruncated."""
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
                value = constraint.parse(outcome.text)
        usage = replace(outcome.usage, load_s=self.load_s)
        return Generation(outcome.text, value, outcome.token_ids, outcome.finish_reason, usage, outcome.stop_string)

    def _accepts(self, constraint: Constraint, text: str) -> bool:
        matcher = constraint.grammar.matcher(self.vocabulary)
        try:
            matcher.accept_bytes(text.encode())
        except GrammarViolation:
            return False
        return matcher.is_accepting


def _scheduler(loaded: LoadedModel, config: EngineConfig, stop_ids: Sequence[int]) -> Scheduler:
    """The engine's inner parts around a loaded model."""
    model, c = loaded.model, loaded.config
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, model.dtype, model.device)
    enough = 2 * config.max_running * (config.max_context or c.max_position) * shape.bytes_per_token
    pool = KVPool(shape, kv_bytes(config.kv_memory, model.device, enough), prefix_caching=config.prefix_caching)
    runner = TorchRunner(model, pool, model.device, config.threads)
    limits = Limits(config.max_running, config.max_queue, config.step_tokens, config.mixed_step_tokens)
    vocab_size = min(c.vocab_size, len(loaded.tokenizer.token_bytes))
    return Scheduler(runner, pool, Advancer(vocab_size, stop_ids), limits)


def _puts_bos(tokenizer: Tokenizer) -> bool:
    """Whether the model's own tokenizer begins every text with its first token (Llama and Gemma do, SmolLM and Qwen do not)."""
    first = tokenizer.raw.encode("a", add_special_tokens=True).ids[:1]
    return tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]


def _compile_kernels_once(progress: Callable[..., None] | None) -> None:
    """Compiles the grammar kernels if this machine has not yet, showing that it does: it takes about a minute."""
    from agentkit.grammars.warmup import compile_kernels, kernels_cached

    if not kernels_cached():
        with progress_or_default(progress) as report:
            report("compiling the grammar kernels (once on this machine)", 0, 1)
            compile_kernels()
            report("compiling the grammar kernels (once on this machine)", 1, 1)
