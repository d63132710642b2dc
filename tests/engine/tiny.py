"""Small stand-ins for engine tests: a random decoder, a scripted one, a byte vocabulary, and a grammar of finitely many texts.

The matcher here is written naively on purpose: it is a second opinion on what the engine does with the real one.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from agentkit.engine.advance import Advancer, pack_ids
from agentkit.engine.config import SamplingParams
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder, RowSelection
from agentkit.engine.request import Event, Outcome, Request, TokenEvent
from agentkit.engine.runner import Runner, TorchRunner
from agentkit.engine.scheduler import Limits, Scheduler
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.text import OutputText
from agentkit.errors import GrammarViolation

TOKENS: list[bytes | None] = [bytes([b]) for b in range(256)] + [b"AB", b"C D", b"EF", b"ab", b'{"', b'":', b"true", "é".encode(), None]
STOP = len(TOKENS) - 1
WIDTH = 320  # logits wider than the vocabulary


def attend_explicit(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """Attention in plain products, in float32. q [T, H, D], keys and values [KV, S, D], mask additive [T, S] or None -> [T, H, D].

    Head h belongs to key head h // (H / KV).
    """
    t, heads, dim = q.shape
    kv = keys.shape[0]
    queries = q.float().view(t, kv, heads // kv, dim).permute(1, 2, 0, 3).reshape(kv, -1, dim)  # [KV, G*T, D]
    scores = torch.bmm(queries, keys.float().transpose(1, 2)).mul_(scale).view(kv, heads // kv, t, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).view(kv, -1, scores.shape[-1])
    out = torch.bmm(weights, values.float()).view(kv, heads // kv, t, dim)
    return out.permute(2, 0, 1, 3).reshape(t, heads, dim).to(q.dtype)


class ByteDetokenizer:
    """Detokenizer protocol over TOKENS."""

    def __init__(self, tokens: Sequence[bytes | None] = TOKENS) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokens[token_id] or b"")

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class TinyDecoder:
    """A random decoder of two layers with the native contract; deterministic by seed."""

    def __init__(
        self, seed: int = 0, width: int = WIDTH, *, layers: int = 2, heads: int = 4, kv: int = 2, dim: int = 8, softcap: float | None = None,
        windows: tuple[int | None, ...] = (),
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        self.layers, self.heads, self.kv, self.dim, self.softcap = layers, heads, kv, dim, softcap
        self.windows = windows or (None,) * layers
        hidden = heads * dim
        self.embed = torch.randn(width, hidden, generator=generator)
        self.weights = [[torch.randn(n, hidden, generator=generator) / hidden**0.5 for n in (hidden, kv * dim, kv * dim, hidden)] for _ in range(layers)]
        self.head = torch.randn(width, hidden, generator=generator) * 3 / hidden**0.5  # logits of deviation 3: choices, not repetition
        self.calls: list[int] = []

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Callable[..., torch.Tensor], logits_for: RowSelection) -> torch.Tensor:
        self.calls.append(ids.shape[0])
        angle = positions.float().unsqueeze(1) / 50.0 * torch.arange(1, self.embed.shape[1] + 1)
        x = self.embed[ids] + torch.sin(angle)
        for layer, (wq, wk, wv, wo) in enumerate(self.weights):
            normed = functional.layer_norm(x, x.shape[1:])
            q = (normed @ wq.T).view(-1, self.heads, self.dim)
            k, v = ((normed @ w.T).view(-1, self.kv, self.dim) for w in (wk, wv))
            x = x + attend(layer, q, k, v, window=self.windows[layer], scale=self.dim**-0.5, softcap=self.softcap).flatten(1) @ wo.T
        return functional.layer_norm(x[logits_for], x.shape[1:]) @ self.head.T


class ScriptedDecoder(TinyDecoder):
    """Wants script[i] as output i of a prompt of `prompt` tokens; NaN where the script says None."""

    def __init__(self, script: Sequence[int | None], prompt: int = 1) -> None:
        super().__init__()
        self.script, self.prompt = list(script), prompt

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Callable[..., torch.Tensor], logits_for: RowSelection) -> torch.Tensor:
        logits = super().forward(ids, positions, attend, logits_for) * 0
        for row, position in enumerate(positions[logits_for].tolist()):
            at = position - self.prompt + 1
            token = self.script[at] if at < len(self.script) else STOP
            logits[row, STOP if token is None else token] = torch.nan if token is None else 10.0
        return logits


class TextsMatcher:
    """Accepts exactly `texts`, over TOKENS. `fail_at`: raise GrammarViolation at that accept, as a broken matcher would."""

    def __init__(self, texts: Iterable[bytes], *, forced: bool = True, lazy: bool = True, fail_at: int | None = None) -> None:
        self.texts = frozenset(texts)
        self.so_far: list[bytes] = []
        self.is_finished = False
        self.force, self.lazy, self.fail_at = forced, lazy, fail_at
        self.accepts = self.masks = 0

    @property
    def text(self) -> bytes:
        return b"".join(self.so_far)

    @property
    def is_accepting(self) -> bool:
        return not self.is_finished and self.text in self.texts

    def _needed(self, text: bytes) -> int | None:
        """Fewest tokens from `text` to the end of one of the texts (greedy longest tokens do for TOKENS); None: cannot."""
        ends = [t for t in self.texts if t.startswith(text)]
        return min((_spell(t[len(text) :]) for t in ends), default=None)

    def _legal(self) -> dict[int, int]:
        """Allowed tokens -> tokens needed after them."""
        found = {i: n for i, b in enumerate(TOKENS) if b and (n := self._needed(self.text + b)) is not None}
        return found | ({STOP: 0} if self.is_accepting else {})

    def mask(self, remaining: int | None = None, *, lazy: bool | None = None) -> np.ndarray:
        self.masks += 1
        if self.is_finished:
            return np.zeros(WIDTH // 32, np.uint32)
        slack = 2 if (self.lazy if lazy is None else lazy) else 0  # a lazy matcher only rules out near the end, as the real one does
        row = pack_ids(i for i, n in self._legal().items() if i == STOP or remaining is None or n <= remaining - 1 + slack)
        return np.concatenate([row, np.zeros(WIDTH // 32 - row.size, np.uint32)])

    def fits(self, token: int, remaining: int) -> bool:
        return token == STOP or self._legal()[token] <= remaining - 1

    def guarded_mask(self, remaining: int) -> np.ndarray:
        return self.mask(remaining, lazy=False)

    def completion_tokens(self) -> int:
        needed = self._needed(self.text)
        assert needed is not None
        return needed

    def forced_tokens(self, before: Sequence[int] = ()) -> list[int]:
        assert b"".join(TOKENS[t] or b"" for t in before) == self.text
        if not self.force:
            return []
        ends = [t for t in self.texts if t.startswith(self.text)]
        common = ends[0]
        for t in ends[1:]:
            common = common[: next((i for i, (a, b) in enumerate(zip(common, t, strict=False)) if a != b), min(len(common), len(t)))]
        return [] if self.is_accepting else tokenize(common[len(self.text) :])

    def accept(self, token: int) -> None:
        if self.is_finished:
            return
        self.accepts += 1
        if self.accepts == self.fail_at or token not in self._legal():
            raise GrammarViolation(f"token {token} after {self.text!r}")
        if token == STOP:
            self.is_finished = True
        else:
            self.so_far.append(TOKENS[token] or b"")

    def allows(self, token: int) -> bool:
        return not self.is_finished and token in self._legal()

    def rollback(self, n: int) -> None:
        if self.is_finished:
            self.is_finished, n = False, n - 1
        del self.so_far[len(self.so_far) - n :]


def tokenize(data: bytes) -> list[int]:
    """Greedy longest match over TOKENS."""
    ids = []
    while data:
        best = max((i for i, b in enumerate(TOKENS) if b and data.startswith(b)), key=lambda i: len(TOKENS[i] or b""))
        ids.append(best)
        data = data[len(TOKENS[best] or b"") :]
    return ids


def _spell(data: bytes) -> int:
    return len(tokenize(data))


class Bench:
    """A scheduler around a small model, stepped by hand, with every invariant checked after each step."""

    def __init__(
        self,
        model: TinyDecoder | Decoder,
        *,
        pages: int = 2048,
        limits: Limits | None = None,
        speculator: Speculator | None = None,
        kv: torch.dtype = torch.float32,
        runner: Callable[[Any, KVPool], Runner] | None = None,
        **pool: Any,
    ) -> None:
        self.model = model
        if isinstance(model, Decoder):
            shape = KVShape(model.config.num_layers, model.config.num_kv_heads, model.config.head_dim, kv)
        else:
            shape = KVShape(model.layers, model.kv, model.dim, kv)
        self.pool = KVPool(shape, pages * shape.bytes_per_page, **pool)
        made = runner(model, self.pool) if runner else TorchRunner(model, self.pool, threads=1)
        self.scheduler = Scheduler(made, self.pool, Advancer(len(TOKENS), [STOP]), limits or Limits(), speculator)
        self.events: dict[int, list[Any]] = {}

    def request(self, prompt: Sequence[int] | bytes, matcher: Any = None, seed: int = 0, **options: Any) -> Request:
        params = SamplingParams(**options)
        heard: list[Event | Outcome | BaseException] = []
        output = OutputText(ByteDetokenizer(), params.stop, params.include_stop)
        ids = tokenize(prompt) if isinstance(prompt, bytes) else list(prompt)
        request = Request(ids, params, heard.append, output, seed=params.seed if params.seed is not None else seed, matcher=matcher)
        self.events[id(request)] = heard
        return request

    def submit(self, *args: Any, **options: Any) -> Request:
        request = self.request(*args, **options)
        self.scheduler.submit(request)
        return request

    def heard(self, request: Request) -> list[Any]:
        return self.events[id(request)]

    def deltas(self, request: Request) -> list[str]:
        return [e.text for e in self.heard(request) if isinstance(e, TokenEvent)]

    def step(self) -> None:
        self.scheduler.step()
        self.pool.check_invariants()
        live = [r.sequence for r in self.scheduler.running]
        assert self.pool.live_sequences == len(live)
        for request in self.scheduler.running:
            assert request.sequence is not None
            assert request.sequence.tokens == request.tokens[: request.computed]

    def run(self, *requests: Request, steps: int = 2000) -> None:
        while not all(r.outcome or r.error for r in requests):
            steps -= 1
            assert steps > 0, "requests did not finish"
            self.step()

    def complete(self, *args: Any, **options: Any) -> Request:
        request = self.submit(*args, **options)
        self.run(request)
        return request


def logits_without_cache(model: TinyDecoder, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after the last of `tokens`: the whole sequence anew, explicit attention, no cache."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None, scale: float, softcap: float | None) -> torch.Tensor:
        hidden = torch.ones(q.shape[0], q.shape[0], dtype=torch.bool).triu_(1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return attend_explicit(q, k.transpose(0, 1), v.transpose(0, 1), mask, scale, softcap)

    n = len(tokens)
    return model.forward(torch.tensor(tokens), torch.arange(n), attend, slice(n - 1, n))[0, : len(TOKENS)]


def greedy_without_cache(model: TinyDecoder, prompt: Sequence[int], count: int) -> list[int]:
    """Reference decoding."""
    tokens = list(prompt)
    for _ in range(count):
        token = int(logits_without_cache(model, tokens).argmax())
        if token == STOP:
            break
        tokens.append(token)
    return tokens[len(prompt) :]
