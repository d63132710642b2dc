"""How likely a model finds a given text, token by token.

Inputs: token ids, and the engine's loop, runner and pool. The text is read in chunks, each a job of its own between two steps, so requests
that run beside it go on. Knows nothing of requests or grammars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agentkit.engine.adapters.adapter import AdapterUse
from agentkit.engine.kv import KVPool, KVSequence
from agentkit.engine.loop import EngineLoop
from agentkit.engine.request import domain_of
from agentkit.engine.runner import Runner, Span
from agentkit.errors import AgentKitError, EngineBusy, EngineError, NumericalError

CHUNK = 128


def scores(ids: Sequence[int], loop: EngineLoop, runner: Runner, pool: KVPool, vocab_size: int, adapter: AdapterUse | None = None) -> Iterator[float]:
    """Natural log-probabilities of the tokens of a text but the first, each after all before it, over the ids below vocab_size.

    Under a policy (Window, Streaming, H2O) a token sees what it would see in a generation. Raises EngineBusy where there are no pages,
    NumericalError, and EngineError for whatever else goes wrong.
    """
    sequence = loop.call(lambda: pool.start(ids[:1], domain_of(adapter), room=len(ids))).result()
    dropped = False
    try:
        while sequence.length < len(ids) - 1:
            yield from loop.call(lambda: _chunk(ids, sequence, runner, pool, vocab_size, adapter)).result()
    except GeneratorExit:
        dropped = True
        raise
    finally:
        if loop.is_usable:
            released = loop.call(lambda: pool.release(sequence, keep=False))
            if not dropped:  # else by the garbage collector, perhaps: on the engine thread itself waiting would never end
                released.result()


def _chunk(ids: Sequence[int], sequence: KVSequence, runner: Runner, pool: KVPool, vocab_size: int, adapter: AdapterUse | None) -> list[float]:
    at = sequence.length
    size = min(CHUNK, pool.room(sequence) or CHUNK, len(ids) - 1 - at)
    if not pool.reserve(sequence, at + size):
        raise EngineBusy("there are no pages to read the text into; wait for running requests, or raise kv_memory")
    try:
        rows = runner.execute([Span(sequence, tuple(ids[at : at + size]), rows=size, adapter=adapter)])[0]
    except AgentKitError:
        raise
    except Exception as error:
        raise EngineError(f"the engine failed on this text: {type(error).__name__}: {error}") from error
    logits = rows[:, :vocab_size].astype(np.float64)  # [size, V]
    if np.isnan(logits).any():
        raise NumericalError(f"the model's logits have NaN between the tokens {at} and {at + size} of the text")
    largest = logits.max(1)
    totals = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
    found: list[float] = (logits[np.arange(size), ids[at + 1 : at + 1 + size]] - totals).tolist()
    return found
