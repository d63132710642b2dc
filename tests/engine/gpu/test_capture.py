"""What a captured step must not do: ask the device for a value, take anything from the host, or leave its results at other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentkit.engine.device.beside import Ragged
from agentkit.engine.device.decoder import DeviceDecoder
from agentkit.engine.device.step import Bucket, DeviceStep
from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.choose import step_kernels
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kernels.gpu.sampling_batch import Draw
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import H2O, Reach, Streaming, Window, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.received import Received
from agentkit.grammars.device import Pushdown
from agentkit.grammars.kernels.tables import Tables
from tests.engine.gpu.bursts import VOCABULARY
from tests.engine.gpu.test_device_step import SAMPLED, step_on
from tests.engine.kernels.models import VARIANTS, decoder, moved
from tests.engine.tiny import WIDTH

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU says so itself")
NOWHERE = torch.device("meta")
"""A device whose tensors have shapes and no values: whoever asks for one fails."""
WAITING = {"aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.item", "aten.equal", "aten.unique2", "aten.repeat_interleave.Tensor"}
COPIES = ("aten._to_copy", "aten.copy_")


class Capturing(TorchDispatchMode):
    """Fails where an operation waits for the device or copies from the host, which a GPU refuses while it captures."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        places = {tensor.device.type for tensor in tensors}
        name = str(function).removesuffix(".default")
        assert "meta" not in places or name not in WAITING, f"{name} waits for the device"
        copies = name.startswith(COPIES) or any(tensor.device.type == "cpu" and tensor.dim() for tensor in tensors)
        assert len(places) < 2 or not copies, f"{name} takes something from the host, or brings it there"
        return out


class Making(TorchFunctionMode):
    """Fails where a tensor of the device is made from numbers of the host, which no operation shows."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        assert function not in (torch.tensor, torch.as_tensor, torch.asarray) or out.device.type == "cpu", f"{function.__name__} takes numbers from the host"
        return out


def forward(decode: DeviceDecoder, batch: Batch, parts: Sequence[Part]) -> torch.Tensor:
    return decode.logits(decode.states(batch, parts))


def step_of(model: Decoder, kv: torch.dtype, reach: Reach, shared: int = 0) -> DeviceStep:
    """A step that does all that any step does, over the Triton kernels."""
    c, row = model.config, row_size(kv, model.config.head_dim, NOWHERE)
    groups = by_window(reach, c.num_layers, c.max_position)
    bucket = Bucket(4, 32, grammars=True, history=True, logprobs=True, biases=2, shared=shared, page_tables=groups.tables)
    data = torch.empty(groups.width, 2, c.num_kv_heads, 64 * PAGE, row, dtype=kv, device=NOWHERE)
    received = None if reach.budget is None else Received.empty(c.num_kv_heads, 64 * PAGE, NOWHERE)
    run = partial(forward, DeviceDecoder(model, [KVLayer.of(data[stored], table) for table, stored in groups.places], "triton", reach, received))
    tables = Tables.of(Pushdown(VOCABULARY, states=50, rows=20), 4, NOWHERE)
    return DeviceStep(
        bucket, run, step_kernels("triton", NOWHERE), NOWHERE, width=c.vocab_size, vocab_size=c.vocab_size, stops=[1], tables=tables,
    )  # fmt: skip


KINDS = {
    "plain": ("llama", torch.bfloat16, None, 0), "shared": ("llama", torch.bfloat16, None, 16), "8 bits": ("qwen3", torch.int8, None, 0),
    "fp8": ("llama", torch.uint8, None, 16), "windows": ("gemma", torch.bfloat16, Window(60), 0), "sinks": ("qwen3", torch.int8, Streaming(4, 32), 0),
    "windows of some layers": ("gemma", torch.bfloat16, "auto", 16), "heavy hitters": ("llama", torch.int8, H2O(128), 0),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_asks_nothing_of_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", lambda *_, **__: None)  # what kernels are launched with counts, not what they do
    variant, kv, policy, shared = KINDS[kind]
    model = moved(decoder(**{**VARIANTS[variant], "dim": 16, "vocabulary": WIDTH}), NOWHERE, torch.bfloat16)
    step = step_of(model, kv, Reach() if policy is None else reach_of(policy, model.config), shared)
    room = Ragged.room(32, step.batch.shape, NOWHERE)
    with torch.inference_mode():
        for beside in (None, room):
            step._rehearse(beside)
            with Capturing(), Making():
                step._body(beside)


@pytest.mark.parametrize("wrong", [
    lambda x: x.tolist(), lambda x: x[x > 0], lambda x: x + torch.tensor([1.0], device=x.device), lambda x: x.copy_(torch.ones(3)), lambda x: bool(x.sum()),
])  # fmt: skip
def test_what_cannot_be_captured_is_noticed(wrong: Any) -> None:
    with Capturing(), Making(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        wrong(torch.empty(3, device=NOWHERE))


def addresses(of: Any, seen: set[int] | None = None) -> set[int]:
    """Of all tensors that an object holds."""
    seen = set() if seen is None else seen
    if id(of) in seen:
        return set()
    seen.add(id(of))
    if isinstance(of, torch.Tensor):
        return {of.data_ptr()}
    if isinstance(of, dict | list | tuple):
        parts = list(of.values() if isinstance(of, dict) else of)
    elif type(of).__module__.startswith("agentkit.engine") or type(of).__module__.startswith("agentkit.grammars.kernels"):
        parts = list(vars(of).values())
    else:
        parts = []
    return set().union(*(addresses(part, seen) for part in parts))


def test_a_step_leaves_everything_at_its_address() -> None:
    step = step_on("cpu", graph=False, kernels="reference")
    before = addresses(step)
    assert len(before) > 20
    for _ in range(3):
        step.launch()
    step.load(1, 3, PAGE, [[1, 2], [11, 12]], Draw(SAMPLED, seed=5, written=[7, 8]), None)
    step.set_pages(0, [[3, 5, 9], [13, 15, 19]])
    step.retire(2)
    step.launch()
    step.forget()
    assert addresses(step) == before
