"""Families through a whole engine with a tiny random model: special tokens are sampled, spelled out and read back as calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from agentkit import Agent, Engine, tool
from agentkit.events import ReasoningDelta, TextDelta
from agentkit.grammars.frontends.turn_formats import FORMATS
from agentkit.local_model import LocalModel
from tests.engine.loaded import loaded_model

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}FRAME{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FRAMES = {
    "llama3": "<|start_header_id|>",
    "mistral": "[TOOL_CALLS] [",
    "mistral-v11": "[TOOL_CALLS][ARGS]",
    "deepseek-v3": "<｜tool▁calls▁begin｜>```json",
    "harmony": "<|start|>assistant<|channel|>",
    "qwen": '<tool_call>{"name": "", "arguments"<think>',
}


@tool
def pick(colour: Literal["red", "<|channel|>", "[TOOL_CALLS]"], sure: bool = True) -> str:
    """Picks a colour."""
    return f"{colour} picked"


@pytest.mark.parametrize("family", FRAMES)
def test_a_random_model_calls_in_its_familys_form(tmp_path: Path, family: str) -> None:
    form = FORMATS[family]
    template = TEMPLATE.replace("FRAME", FRAMES[family])
    with Engine(loaded_model(tmp_path, specials=form.specials, template=template, seed=3), seed=1) as engine:
        agent: Agent[None, str] = Agent(engine, tools=[pick], max_tokens=200, temperature=1.0)
        assert isinstance(agent.model, LocalModel)
        protocol: Any = agent.model.protocol_of(engine)
        assert (protocol.format, protocol.native is not None) == (family, True)
        for seed in range(2):
            result = agent.run_sync("go", tool_choice="pick", seed=seed, execute_tools=False)
            (call,) = result.tool_calls
            assert call.arguments.colour in ("red", "<|channel|>", "[TOOL_CALLS]")  # type: ignore[attr-defined]
        answered = agent.run_sync("go", tool_choice="none", seed=5, max_tokens=60)
        assert answered.tool_calls == ()
        assert answered.output
        assert not any(re.search(re.escape(name), answered.output) for name in form.never_text)


async def test_reasoning_is_told_apart_from_the_answer(tmp_path: Path) -> None:
    form = FORMATS["qwen"]
    template = TEMPLATE.replace("FRAME", FRAMES["qwen"]).replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    with Engine(loaded_model(tmp_path, specials=form.specials, template=template, seed=3), seed=1) as engine:
        agent: Agent[None, str] = Agent(engine, max_tokens=40, temperature=1.0)
        async with agent.run_stream("go", seed=2) as stream:
            events = [event async for event in stream]
        thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        assert thought
        assert stream.result.output == "".join(event.text for event in events if isinstance(event, TextDelta)) != ""
        assert "</think>" not in stream.result.output + thought
