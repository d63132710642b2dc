"""All successors of a state in one call: what the rows of a device's tables are made of.

Called byte by byte from Python, most of the time goes into the calls. Only who drives a device needs it, so it is compiled apart from the
other kernels, into a folder whose name holds the digests of theirs and of this file. Input: an arena and a state.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentkit.grammars import core
from agentkit.grammars.core.layout import H_STATUS
from agentkit.grammars.core.nodes import reg
from agentkit.grammars.core.step import step
from agentkit.grammars.jit import KernelLibrary

if TYPE_CHECKING:
    from agentkit.grammars.arena import Arena

__all__ = ["compile_successors", "successors"]

_OWN = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=4).hexdigest()
_LIBRARY = KernelLibrary(f"successors-{_OWN}", Path(core.__file__).parent)


@_LIBRARY.kernel
def _successors(mem, state, out):  # type: ignore[no-untyped-def]  # compiled
    for byte in range(256):
        out[byte] = step(mem, state, byte)
        if reg(mem, H_STATUS):
            break


def successors(arena: Arena, state: int) -> np.ndarray:
    """int32 [256]: the state after each byte, 0 where it is not allowed. Byte by byte where `compile_successors` has never been called on this machine."""
    return arena.derivatives(state, _successors if _is_compiled() else None)


def compile_successors() -> None:
    """Makes `successors` quick from now on, in later processes as well; half a minute on one core, once."""
    from agentkit.grammars.grammar import Grammar
    from agentkit.grammars.vocabulary import Vocabulary

    matcher = Grammar.from_regex("a").matcher(Vocabulary([b"a", None], stop_token_ids=[1]))
    matcher.arena.derivatives(matcher.state, _successors)
    _known.append(True)


_known: list[bool] = []


def _is_compiled() -> bool:
    if not _known:
        _known.append(_LIBRARY.cached())
    return _known[-1]
