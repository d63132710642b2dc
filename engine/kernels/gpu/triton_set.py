"""The Triton kernels under the names that reference.py has, too."""

from __future__ import annotations

from agentkit.engine.kernels.gpu.attention import attend, attend_shared, attend_streaming
from agentkit.engine.kernels.gpu.gate import gated
from agentkit.engine.kernels.gpu.lora import expand, shrink
from agentkit.engine.kernels.gpu.norm import add_norm, norm
from agentkit.engine.kernels.gpu.rotary import rotate_and_write
from agentkit.engine.kernels.gpu.store import write
from agentkit.engine.kernels.gpu.weigh import weigh

__all__ = ["add_norm", "attend", "attend_shared", "attend_streaming", "expand", "gated", "norm", "rotate_and_write", "shrink", "weigh", "write"]
