"""The embedded engine as an application sees it: prompts and constraints in, generations and events out.

Inputs: a model (by name, path or already loaded) and, per request, a prompt, at most one constraint and sampling options.
The model is loaded by the constructor; the engine thread starts with the first request and owns the model from then on.
Callers of `generate` and `stream` wait on their own thread, those of `agenerate` and `astream` await; any number of both
may share one engine. This module knows nothing of tools or agents.
"""

from __future__ import annotations

import asyncio
import os
import queue
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from agentkit.cache_folder import cache_root
from agentkit.engine.adapters.adapter import Adapter, AdapterUse
from agentkit.engine.assembly import adapters_for, model_for, scheduler_for
from agentkit.engine.checks import listener
from agentkit.engine.config import EngineConfig, GenerateOptions, SamplingOptions, SamplingParams, sampling_params
from agentkit.engine.constraint import Constraint, resolve
from agentkit.engine.fingerprint import fingerprint
from agentkit.engine.intake import Intake, Prompt, stable_prefix
from agentkit.engine.kv_policy import H2O, Policy, Streaming
from agentkit.engine.loop import EngineLoop
from agentkit.engine.metrics import EngineStats, Metrics, Tracer, prometheus, snapshot
from agentkit.engine.models.chat_messages import as_dicts, encode_chat
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.pins import Pin, PrefixCache
from agentkit.engine.request import Event, FinishEvent, Generation, Outcome, Request, TokenEvent
from agentkit.engine.scoring import scores
from agentkit.engine.speculation.choose import speculator_for
from agentkit.engine.speculation.setting import check_speculation
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.stream import Arrived, Deliveries, EventStream
from agentkit.engine.waiting import may_not_fit, refusal
from agentkit.errors import EngineError, InvalidOption
from agentkit.grammars import Vocabulary
from agentkit.grammars.settings import settings

if TYPE_CHECKING:
    from agentkit.engine.models.chat_template import ChatTemplate
    from agentkit.engine.models.decoder import LanguageModel
    from agentkit.engine.models.tokenizer import Tokenizer

ENDLESS = 1 << 40
"""Tokens that nobody reaches."""


class Engine:
    """A language model in this process.

    model: "smollm2-135m", a folder in hub layout, a GGUF file, "org/name", or a LoadedModel.
    speculation, weights, activations, kv, attention, seed, max_context, device, threads, max_running, max_queue, kv_memory, prefix_caching, prefix_file,
        deterministic, cuda_graphs: see EngineConfig.
    adapters: name -> folder or hub repository of each low-rank adapter to load; see load_adapter.
    tracer: an OpenTelemetry tracer, which then gets a span per request (GenAI conventions).
    cache_dir: where models are kept; None: the user's cache.    progress: told how far fetching and loading are.

    Raises ModelNotFound, AdapterError, or ValueError for a setting out of range. Use as a context manager, or call `close()`.

    Options of generate, stream, agenerate and astream: at most one of schema, regex, grammar, choices (see constraint.resolve),
    and those of SamplingParams by name. All of them raise ContextTooLong, BudgetTooSmall, EngineBusy, AdapterNotFound,
    GrammarError and ValueError before anything runs; NumericalError, GenerationTruncated or EngineError while it runs.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        speculation: str = "auto",
        weights: str = "auto",
        activations: str = "auto",
        kv: str | Policy = "auto",
        attention: str = "flash",
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
        prefix_file: str | Path | None = None,
        deterministic: bool = False,
        cuda_graphs: bool = True,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.config = EngineConfig(
            model=model.name if isinstance(model, LoadedModel) else str(model),
            speculation=speculation,
            weights=weights,
            activations=activations,
            kv=kv,
            attention=attention,
            seed=seed,
            max_context=max_context,
            device=device,
            threads=threads,
            cache_dir=None if cache_dir is None else str(cache_dir),
            max_running=max_running,
            max_queue=max_queue,
            kv_memory=kv_memory,
            prefix_caching=prefix_caching,
            prefix_file=None if prefix_file is None else str(prefix_file),
            deterministic=deterministic,
            cuda_graphs=cuda_graphs,
        )
        start = time.perf_counter()
        self._loaded = loaded = model_for(self.config, model, progress)
        self.model_name = loaded.name
        limit = ENDLESS if isinstance(kv, Streaming) else loaded.config.max_position
        if max_context is not None and max_context > limit:
            raise InvalidOption(f"max_context={max_context}: {loaded.name} takes at most {limit} tokens; lower it or leave it out, or see kv=Streaming(...)")
        self.max_context = max_context or limit
        self.metrics = Metrics(loaded.name, tracer)
        self._scheduler = scheduler_for(loaded, self.config, self.metrics, progress)
        folder = None if cache_dir is None else Path(cache_dir)
        self.heads_digest = partial(fingerprint, loaded, "")  # heads fit a model however its weights are held
        self._speculator_for = partial(speculator_for, target=loaded, pool=self._scheduler.pool, digest=self.heads_digest, cache_dir=folder)
        self._scheduler.speculate(self._speculator_for("off" if speculation == "auto" and isinstance(kv, H2O) else speculation))
        self._loop = EngineLoop(self._scheduler, name=f"agentkit-engine-{self.model_name}")
        self._adapters = adapters_for(loaded, self._scheduler, progress)
        self._intake = Intake(loaded, self._scheduler.pool, self._adapters, seed=seed, max_context=self.max_context, progress=progress)
        file = None if prefix_file is None else Path(prefix_file).expanduser()
        held_as = f"{weights}, activations {activations}" + ("" if isinstance(kv, str) else f", {kv}")
        self.prefix = PrefixCache(self._scheduler.pool, self._loop, partial(fingerprint, loaded, held_as), file)
        self._deliveries: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = weakref.WeakKeyDictionary()
        self._finalizer = weakref.finalize(self, self._loop.close)  # also at interpreter exit
        settings.suggest_disk(cache_root(cache_dir) / "grammars")
        self._adapters.load_all(adapters)
        self.load_s = self._intake.load_s = time.perf_counter() - start

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

        Special tokens in a text prompt are recognised: it is the developer's own. Options: see the class. With n > 1 the
        outcome is the first output, the others are its `alternatives`.
        """
        listener("on_event", on_event)
        params = sampling_params(options)
        streams = self._streams(prompt, params, resolve(schema, regex, grammar, choices), whole=on_event is None)
        try:
            generations = [_last(stream, on_event) for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return replace(generations[0], alternatives=tuple(generations[1:]))

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
        return self._streams(prompt, sampling_params(options), resolve(schema, regex, grammar, choices), whole=False)[0]

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
        listener("on_event", on_event)
        params = sampling_params(options)
        generations: dict[int, Generation] = {}
        async with aclosing(self._events(prompt, params, (schema, regex, grammar, choices), whole=on_event is None)) as events:
            async for place, event in events:
                if on_event is not None:
                    on_event(event)
                if isinstance(event, FinishEvent):
                    generations[place] = event.generation
        return replace(generations[0], alternatives=tuple(generations[i] for i in range(1, params.n)))

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
        async with aclosing(self._events(prompt, params, (schema, regex, grammar, choices), whole=False)) as events:
            async for _, event in events:
                yield event

    # -- chat ---------------------------------------------------------------------------------------------------

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True
    ) -> list[int]:
        """Messages through the model's chat template -> token ids. Special tokens come from the template only, never from contents.

        messages: as in OpenAI's chat API; contents are texts or lists of text parts. tools: JSON-schema function descriptions.
        Raises EngineError where there is no template, it fails or does not show tools; TypeError for what are no messages, ValueError for none
        at all, HistoryError (a ValueError) for one that cannot be read.
        """
        template = self._loaded.chat_template
        if template is None:
            raise EngineError(f"the model {self.model_name!r} has no chat template; write the prompt yourself and use generate()")
        return encode_chat(template, messages, tools, add_generation_prompt)

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

    def score(self, text: Prompt, *, adapter: str | None = None, adapter_scale: float = 1.0) -> Iterator[float]:
        """Natural log-probabilities of a text's tokens but the first, each after all before it; the exponential of minus their mean is its perplexity.

        The text is read in chunks as the values are asked for. Raises ContextTooLong, AdapterNotFound and what `generate` raises for a prompt; EngineBusy
        where running requests leave no pages for it; NumericalError and EngineError while it is read.
        """
        ids = self._intake.encode(text)
        self._intake.check_size(ids, 0)
        size = self._loaded.token_count
        padding = next((token for token in ids[1:] if token >= size), None)
        if padding is not None:
            raise ValueError(f"the text contains the token id {padding}, which only pads the model's logits; those of texts go from 0 to {size - 1}")
        params = SamplingParams(adapter=adapter, adapter_scale=adapter_scale)
        return self._scores(ids, size, self._adapters.use(params.adapter, params.adapter_scale))

    def speculate(self, setting: str | Speculator | None) -> None:
        """Drafts tokens otherwise from now on, for requests that run, too; outputs do not change. setting: as for `speculator`, or one; None: "off"."""
        speculator = setting if setting is None or isinstance(setting, Speculator) else self.speculator(setting)
        self._loop.call(partial(self._scheduler.speculate, speculator)).result()

    def speculator(self, setting: str) -> Speculator | None:
        """What a `speculation` setting (see EngineConfig) stands for; None for "off". Raises ValueError, EngineError, ModelNotFound as the constructor does."""
        check_speculation(setting)
        return self._speculator_for(setting)

    # -- adapters -----------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters that requests can choose now, by name."""
        return self._adapters.loaded

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> Adapter:
        """Makes a LoRA adapter choosable as `adapter=name`, in place of one of that name; requests that run go on with the one they chose.

        path: a folder in PEFT's layout (adapter_config.json, adapter_model.safetensors), or a hub repository "org/name".
        Raises AdapterNotFound, or AdapterError for one that is damaged, not supported, or not for this model: nothing has changed then.
        """
        return self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Requests cannot choose it any more; those that have chosen it end with it, then its memory is free. Raises AdapterNotFound."""
        self._adapters.unload(name)

    # -- prefixes and figures -----------------------------------------------------------------------------------

    def pin(
        self,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: Prompt | None = None,
        cache_salt: str | None = None,
        adapter: str | None = None,
        adapter_scale: float = 1.0,
        wait: bool = True,
    ) -> Pin:
        """Computes a prefix and keeps it until the handle is released, whatever else comes and goes.

        messages, tools: the beginning of conversations, such as [{"role": "system", ...}], through the chat template; or
        prompt: a text or token ids.   wait: False returns at once (see Pin.wait).   cache_salt, adapter, adapter_scale: as in the requests it is for.
        Raises EngineError where pins would hold too much, and what generate raises.
        """
        if (prompt is None) == (messages is None and tools is None):
            raise ValueError("pin takes either messages (and tools) or prompt")
        ids = self._intake.encode(prompt) if prompt is not None else stable_prefix(self.encode_chat, as_dicts("messages", messages or []), tools)
        params = SamplingParams(max_tokens=1, cache_salt=cache_salt, adapter=adapter, adapter_scale=adapter_scale)
        return self.prefix.pin(self._intake.prefill(ids, params), wait=wait)

    def stats(self) -> EngineStats:
        """What the engine does now and has done so far; never waits. Pages of requests that just ended are free a step later at most."""
        scheduler = self._scheduler
        tree, pool = scheduler.pool.tree, scheduler.pool
        return snapshot(
            self.metrics, running=scheduler.active, waiting=scheduler.waiting, pages=pool.page_count, free=pool.free_pages,
            cached=tree.evictable, pinned=tree.pinned, evicted=tree.evicted, page_bytes=pool.page_bytes,
        )  # fmt: skip

    def metrics_text(self) -> str:
        """`stats` and histograms of the times, in the text format that Prometheus scrapes."""
        return prometheus(self.model_name, self.stats(), self.metrics.times)

    # -- parts --------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    @property
    def decoder(self) -> LanguageModel:
        """The model itself, in the engine's weights."""
        return self._loaded.model

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template; None where it has none."""
        return self._loaded.chat_template

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary as grammars see it, as wide as the model's logits; made at its first use."""
        return self._intake.vocabulary

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

    def _streams(self, prompt: Prompt, params: SamplingParams, constraint: Constraint | None, *, whole: bool) -> list[EventStream]:
        """Queues a request and returns the streams of its outputs."""
        self._check_outputs(params, whole)
        self._loop.check_usable()
        arrived: list[Arrived] = [queue.SimpleQueue() for _ in range(params.n)]
        first = self._intake.request(self._intake.encode(prompt), params, constraint, [a.put for a in arrived])
        requests = [first, *first.siblings]
        self._check_room(first)
        self._loop.submit(first)
        return [EventStream(r, a, lambda outcome: self._intake.conclude(outcome, params, constraint)) for r, a in zip(requests, arrived, strict=True)]

    async def _events(self, prompt: Prompt, params: SamplingParams, wanted: tuple[Any, ...], *, whole: bool) -> AsyncGenerator[tuple[int, Event], None]:
        """Queues a request and yields the events of all its outputs, each with the number of its output. wanted: see resolve."""
        self._check_outputs(params, whole)
        arrived: asyncio.Queue[tuple[int, TokenEvent | Outcome | BaseException]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        deliveries = self._deliveries.setdefault(loop, Deliveries(loop))

        def sink(place: int, event: TokenEvent | Outcome | BaseException) -> None:
            try:
                if not whole or loop.is_closed() or not isinstance(event, TokenEvent):  # else nobody looks at single tokens
                    deliveries.put(arrived.put_nowait, (place, event))
            except RuntimeError:  # the caller's event loop is gone, and with it everyone who could listen
                requests[place].cancel()

        def prepare() -> tuple[Constraint | None, Request]:
            self._loop.check_usable()
            constraint = resolve(*wanted)
            made = self._intake.request(self._intake.encode(prompt), params, constraint, [partial(sink, i) for i in range(params.n)])
            self._check_room(made)
            return constraint, made

        constraint, first = await asyncio.to_thread(prepare)
        requests = [first, *first.siblings]
        try:
            self._loop.submit(first)
            running = params.n
            while running:
                place, event = await arrived.get()
                if not isinstance(event, TokenEvent):
                    running -= 1
                yield place, event if isinstance(event, TokenEvent) else FinishEvent(self._intake.conclude(event, params, constraint))
        finally:
            for request in requests:
                request.cancel()

    def _check_room(self, request: Request) -> None:
        """Raises ContextTooLong for what will not fit beside the pins."""
        pool = self._scheduler.pool
        if may_not_fit(pool, request) and (error := self._loop.call(partial(refusal, pool, request)).result()) is not None:
            raise error

    def _scores(self, ids: Sequence[int], size: int, adapter: AdapterUse | None) -> Iterator[float]:
        """See scores; holds the engine for as long as somebody holds the values."""
        yield from scores(ids, self._loop, self._scheduler.runner, self._scheduler.pool, size, adapter)

    def _check_outputs(self, params: SamplingParams, whole: bool) -> None:
        if params.n > 1 and not whole:
            raise ValueError(f"n={params.n} outputs cannot be streamed as one; use generate or agenerate without on_event, or one stream per output")
        self._scheduler.check_outputs(params.n)  # before anything is made for each


def _last(stream: EventStream, on_event: Callable[[Event], None] | None) -> Generation:
    """Runs a stream to its end."""
    for event in stream:
        if on_event is not None:
            on_event(event)
    assert isinstance(event, FinishEvent)  # a stream without one raises
    return event.generation
