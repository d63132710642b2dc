"""How several threads run one kernel together: tickets for chunks of work, in stages.

`sync` is an int64 array of SYNC_SIZE zeros, fresh for every run. Its ticket holds stage << 32 | next chunk. Every worker draws
tickets; who draws one beyond the stage's chunks waits until the leader (worker 0), once all of them are done, opens the next
stage. Helpers only help: one that comes late, or never, leaves its chunks to the others, so nothing depends on how many run.
Which worker computes a chunk never changes its result. Knows nothing of what a chunk is.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as typed_intrinsic
from numba.np.arrayobj import populate_array

from agentkit.engine.kernels.library import inner

intrinsic: Any = typed_intrinsic  # its arguments are not those of the function it wraps
SYNC_SIZE = 32
STAGE_BITS = 32
_TICKET, _DONE = 0, 16  # two cache lines
_SPINS = 4000  # some microseconds; then the processor is offered to others


def _slot(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@intrinsic
def _add(_typing: Any, array: Any, index: Any, amount: Any) -> Any:
    """array[index] += amount, atomically; the value before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _slot(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def _get(_typing: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_slot(context, builder, signature, args), "acquire", 8)

    return types.int64(array, types.int64), codegen


@intrinsic
def _set(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _slot(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def _yield_processor(_typing: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def borrowed(_typing: Any, array: Any) -> Any:
    """The same array, or named tuple of arrays and numbers, without its owner: passing it on counts no references, which several workers would do
    to one counter.
    """

    def without_owner(context: Any, builder: Any, kind: Any, given: Any) -> Any:
        if isinstance(kind, types.NamedTuple):
            for place, member in enumerate(kind.types):
                if isinstance(member, types.Array):
                    own = builder.extract_value(given, place)
                    given = builder.insert_value(given, without_owner(context, builder, member, own), place)
            return given
        value = context.make_array(kind)(context, builder, given)
        value.meminfo = ir.Constant(value.meminfo.type, None)
        value.parent = ir.Constant(value.parent.type, None)
        return value._getvalue()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return without_owner(context, builder, signature.args[0], args[0])

    return array(array), codegen


@intrinsic
def array_at(_typing: Any, address: Any, like: Any) -> Any:
    """An array of the type of `like` [N] over memory that somebody else keeps, without an end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.make_array(like)(context, builder)
        size, item = ir.Constant(ir.IntType(64), 1 << 40), ir.Constant(ir.IntType(64), like.dtype.bitwidth // 8)
        data = builder.inttoptr(args[0], value.data.type)
        populate_array(value, data=data, shape=[size], strides=[item], itemsize=item, meminfo=None)
        return value._getvalue()

    return like(types.int64, like), codegen


@inner
def draw(sync):
    """The next (stage, chunk) as one number; `stage_of` and `chunk_of` take it apart."""
    return _add(sync, _TICKET, 1)


@inner
def stage_of(ticket):
    return ticket >> STAGE_BITS


@inner
def chunk_of(ticket):
    return ticket & ((1 << STAGE_BITS) - 1)


@inner
def finish_chunk(sync):
    _add(sync, _DONE, 1)


@inner
def next_stage(sync, worker, stage, chunks_before):
    """Called when a stage has no chunk left. chunks_before: of all stages up to this one. Returns when the next one is open."""
    spins = 0
    if worker == 0:
        while _get(sync, _DONE) < chunks_before:
            spins += 1
            if spins > _SPINS:
                _yield_processor()
        _set(sync, _TICKET, (stage + 1) << STAGE_BITS)
    else:
        while _get(sync, _TICKET) >> STAGE_BITS == stage:
            spins += 1
            if spins > _SPINS:
                _yield_processor()
