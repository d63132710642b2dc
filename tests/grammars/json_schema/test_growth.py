"""Compiling grows in line with the schema."""

from __future__ import annotations

import time

from agentkit.grammars.frontends.json_schema import compile_schema


def seconds(properties: int) -> float:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(properties)}, "additionalProperties": False}
    times = []
    for _ in range(3):
        start = time.process_time()
        compile_schema(schema, whitespace="flexible", key_order="any")
        times.append(time.process_time() - start)
    return min(times)


def test_twice_the_properties_take_less_than_three_times_as_long() -> None:
    assert seconds(1200) / seconds(600) < 3


def test_the_program_does_not_repeat_shared_parts() -> None:
    shared = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "number"}}}
    few, many = ({"properties": {f"p{i}": shared for i in range(n)}} for n in (2, 50))
    assert len(compile_schema(many).program.starts) == len(compile_schema(few).program.starts)
