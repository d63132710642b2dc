"""Which keys and values a request keeps: the policies of Engine(kv=...), and what they come to for a model.

Inputs: plain numbers. Knows nothing of tensors, pages or requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentkit.engine.checks import integer, plain_numbers
from agentkit.errors import EngineError, InvalidOption

if TYPE_CHECKING:
    from agentkit.engine.models.config import ModelShape
    from agentkit.engine.models.rope import Rope

FORMATS = ("auto", "fp32", "fp16", "bf16", "int8", "fp8")
"""How keys and values are held: see kv_format.py."""
LEAST_WINDOW = 32
STEP = 32
"""Positions that H2O drops at once."""
MOST_SINKS = 256


@dataclass(frozen=True)
class Window:
    """Each token sees itself and the window - 1 tokens before it, in every layer; what falls out of it is freed at once.

    format: how keys and values are held, as in EngineConfig.kv.   Raises ValueError.
    """

    window: int
    format: str = "auto"

    def __post_init__(self) -> None:
        plain_numbers(self)
        integer("kv: window", self.window, LEAST_WINDOW)
        check_format(self.format)


@dataclass(frozen=True)
class Streaming:
    """StreamingLLM (Xiao et al. 2023, arXiv:2309.17453): each token sees the first `sinks` tokens and the last `window`, its own included.

    Positions count within the cache: to the sinks a token is as near as if nothing had been left out. A text may therefore become longer
    than the model's context, without end.   format: as above.   Raises ValueError.
    """

    sinks: int = 4
    window: int = 512
    format: str = "auto"

    def __post_init__(self) -> None:
        plain_numbers(self)
        integer("kv: sinks", self.sinks, 0, MOST_SINKS)
        integer("kv: window", self.window, LEAST_WINDOW)
        check_format(self.format)


@dataclass(frozen=True)
class H2O:
    """Heavy hitters (Zhang et al. 2023, arXiv:2306.14048): at most `budget` positions, the last `recent` of them and those that were attended to most.

    Attention is summed per position over layers, heads and all tokens computed since. Whenever the budget is full, the STEP positions that
    have received least, the recent ones apart, are dropped: the same ones in all layers, since pages hold all layers. What stays keeps its
    position, so the model's context is the limit of a text.
    recent: None: half of the budget.   format: as above.   Raises ValueError.
    """

    budget: int = 512
    recent: int | None = None
    format: str = "auto"

    def __post_init__(self) -> None:
        plain_numbers(self)
        integer("kv: budget", self.budget, 4 * STEP)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)
        integer("kv: recent", self.recent, 1, self.budget - 2 * STEP)
        check_format(self.format)


Policy = Window | Streaming | H2O


@runtime_checkable
class RotaryShape(Protocol):
    """A model whose rotary embeddings are known: one with a native decoder."""

    @property
    def ropes(self) -> tuple[Rope, ...]: ...
    @property
    def rope_of_layer(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Reach:
    """What of the past a model's tokens see under a policy.

    window: positions that a token sees in any layer, its own included, beside the model's own windows; None: no limit.
    sinks: first keys seen beside the window.
    windows: what tokens see in each layer, the model's own windows and the policy's; (): `window` in all.
    budget, recent: see H2O; None: nothing is chosen by attention.
    ropes, rope_of_layer: inverse frequencies of the model's rotary embeddings, and which of them each layer uses; only where there are sinks.
    """

    window: int | None = None
    sinks: int = 0
    windows: tuple[int | None, ...] = ()
    budget: int | None = None
    recent: int = 0
    ropes: tuple[tuple[float, ...], ...] = ()
    rope_of_layer: tuple[int, ...] = ()

    @cached_property
    def kept(self) -> int | None:
        """The widest window of any layer; None: one sees everything."""
        seen = self.windows or (self.window,)
        given = [window for window in seen if window is not None]
        return max(given) if len(given) == len(seen) else None


def reach_of(policy: str | Policy, config: ModelShape, *, standard: bool = False) -> Reach:
    """What a policy, or a format alone, comes to for a model. Raises EngineError where the policy does not suit the model.

    standard: whether attention="standard" reads the pages; it keeps no sums of what was attended to.
    """
    if isinstance(policy, str):
        return Reach(windows=tuple(config.windows))
    if isinstance(policy, H2O):
        if standard:
            raise EngineError(f"{policy} needs attention='flash', which sums up what is attended to; standard attention does not")
        if any(window is not None for window in config.windows):
            raise EngineError(f"{policy} does not suit this model: its layers have windows of their own, and what H2O keeps has gaps; Window suits it")
        assert policy.recent is not None
        return Reach(budget=policy.budget, recent=policy.recent)
    window = min(policy.window, config.max_position) if isinstance(policy, Window) else policy.window  # a wider one lets no token see more
    windows = [window if own is None else min(own, window) for own in config.windows]
    reach = Reach(window=window, windows=tuple(windows))
    if isinstance(policy, Window):
        return reach
    if set(windows) != {policy.window}:
        raise EngineError(f"{policy} does not suit this model: its layers have windows of their own, down to {min(windows)} positions; use a window of those")
    if policy.sinks + policy.window > config.max_position:
        raise EngineError(
            f"{policy} holds {policy.sinks + policy.window} positions, and this model was trained for {config.max_position}; use a smaller window"
        )
    if not isinstance(config, RotaryShape):
        raise EngineError(
            f"{policy} needs the rotary frequencies of a native decoder; this {config.architecture} model runs through transformers. Window suits it"
        )
    return replace(reach, sinks=policy.sinks, ropes=tuple(rope.inverse_frequencies for rope in config.ropes), rope_of_layer=config.rope_of_layer)


def check_format(value: Any) -> None:
    """Raises ValueError for anything but one of FORMATS."""
    if value not in FORMATS:
        raise InvalidOption(f"kv: the format {value!r} is not available; choose one of {', '.join(map(repr, FORMATS))}")
