"""Cases about streams: partial models, and usage that is counted once."""

from __future__ import annotations

import json
import time

from pydantic import BaseModel

from agentkit import Agent, ModelRetry, Partial, tool
from tests.agent.cases.behaviour import behaviour
from tests.agent.remote.server import Server, sse
from tests.agent.scripted import ScriptedModel, calls


class N(BaseModel):
    v: int
    kids: list[N] = []


TREE = {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}, {"v": 4, "kids": []}]}, {"v": 5, "kids": []}]}


@behaviour("sdk-partial-recursive", "Partial(N) is built in < 1 s; prefixes of a 3-level tree parse")
def test_partial_of_a_recursive_model() -> None:
    started = time.perf_counter()
    form = Partial(N)
    assert time.perf_counter() - started < 1
    text = json.dumps(TREE)
    for end in range(len(text) + 1):
        seen = form.from_prefix(text[:end])
        assert seen.v in (None, 1)
    assert seen.model_dump() == N.model_validate(TREE).model_dump()
    half = form.from_prefix('{"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "ki')
    assert (half.v, half.kids[0].v, half.kids[0].kids[0].v, half.kids[0].kids[0].kids) == (1, 2, 3, None)


@behaviour("sdk-usage-last-chunk", "usage is 2/1/3")
async def test_usage_of_a_last_chunk_without_choices() -> None:
    chunks = [
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}},
    ]
    async with Server(sse(*chunks)).running() as server:
        result = await Agent(server.url, model="m", server="other").run("go")
    assert (result.output, result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == ("x", 2, 1, 3)


@behaviour("sdk-usage-last-chunk", "over several turns and retries the totals are sums, each request once")
async def test_usage_is_summed() -> None:
    attempts = 0

    @tool
    def fussy(x: int) -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ModelRetry("not that one")
        return x

    model = ScriptedModel(calls(("fussy", {"x": 1})), calls(("fussy", {"x": 2})), calls(("fussy", {"x": 3})), "Done.")
    usage = (await Agent(model, tools=[fussy]).run("go")).usage
    assert usage.requests == len(usage.per_request) == len(model.requests) == 4
    assert usage.input_tokens == 10 + 20 + 30 + 40
    assert usage.cached_tokens == 0 + 1 + 2 + 3
    assert usage.output_tokens == sum(request.output_tokens for request in usage.per_request) > 4
    assert (usage.forced_tokens, usage.drafted_tokens, usage.accepted_tokens) == (4, 8, 4)
    assert usage.forwards == usage.output_tokens + 4
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.tool_calls == attempts == 3
    assert usage.ttft_s == 0.5
    weights = [request.output_tokens - 1 for request in usage.per_request]
    assert usage.tpot_s == sum(w * 0.01 * (i + 1) for i, w in enumerate(weights)) / sum(weights)
