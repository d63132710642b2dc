"""The turn grammar against a plain description of turns, the protocol's reader and JSON Schema validation."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentkit.errors import GrammarViolation, InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.free_text import text_until
from agentkit.grammars.frontends.turn_formats import FORMATS
from agentkit.grammars.frontends.turns import turn_grammar
from agentkit.protocol import call_text
from agentkit.tool import Tool
from agentkit.turn_reader import FormatReader
from tests.grammars.reference import Reference, accepts, prefix_ok

FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"name": "t2", "description": "with a flag", "parameters": FLAG},
    {"name": "t20", "parameters": None},
    {"name": "t200", "parameters": {"type": "object", "properties": {"k": {"enum": ["<tool_call>", "é\n"]}}, "additionalProperties": False}},
    {"name": "other", "parameters": {}},
]
ARGUMENTS = {"t2": r'\{"on":(?:true|false)\}', "t20": r"\{\}", "t200": r'\{(?:"k":(?:"<tool_call>"|"é\\n"))?\}', "other": r"\{\}"}
CALLS = [call_text("t2", '{"on":true}'), call_text("t20", "{}"), call_text("t200", '{"k":"<tool_call>"}'), call_text("t200", "{}"), call_text("other", "{}")]
PIECES = [
    *CALLS,
    *CALLS,
    "\n",
    "\n",
    "a",
    "é",
    "€x",
    "<",
    "<tool",
    "<<tool_call",
    ">",
    "tool_call>",
    "</tool_call>",
    call_text("t3", "{}"),
    call_text("t2", "{}"),
    "\udc80",
]
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [None], stop_token_ids=[256])


def is_turn(text: str, choice: str, most: int) -> bool:
    """Is this a turn? Written from the description, without grammars."""
    if "\udc80" in text:
        return False
    said, trigger, _ = text.partition("<tool_call>")
    if "</tool_" in said or "<tool_r" in said:
        return False
    if not trigger:
        return choice in ("auto", "none") and text != ""
    if choice == "none" or (said and choice != "auto"):
        return False
    names = [choice] if choice in ARGUMENTS else list(ARGUMENTS)
    call = r'<tool_call>\n\{"name":(?:' + "|".join(f'"{name}","arguments":{ARGUMENTS[name]}' for name in names) + r")\}\n</tool_call>"
    return re.fullmatch(rf"{call}(?:\n{call}){{0,{most - 1}}}", text[len(said) :]) is not None


def random_turn(rng: random.Random, choice: str) -> str:
    kind = rng.random()
    if kind < 0.3:
        return "".join(rng.choices(PIECES, k=rng.randint(0, 4)))
    said = "".join(rng.choices(["a", "é", "<", "<tool_call", "\n"], k=rng.choice([0, 0, 1, 2])))
    calls = [call for call in CALLS if f'"{choice}"' in call] or CALLS
    text = said + "\n".join(rng.choices(calls, k=rng.choice([1, 1, 2, 3])))
    return text if kind < 0.85 else text[: rng.randint(0, len(text))]


@pytest.mark.parametrize("choice", ["auto", "required", "none", "t2", "t20"])
@pytest.mark.parametrize("parallel", [False, 2])
def test_texts_equal_the_description(choice: str, parallel: bool | int) -> None:
    rng = random.Random(f"{choice} {parallel}")
    program, _ = turn_grammar(TOOLS, choice, parallel=parallel)
    reference, start = Reference(program), Grammar(program).matcher(BYTES)
    most = 1 if choice in ARGUMENTS else int(parallel) or 1
    members = 0
    for _ in range(120):
        text = random_turn(rng, choice)
        data = text.encode("utf-8", "surrogateescape")
        member = is_turn(text, choice, most)
        assert accepts(reference, data) == member, text
        matcher, readable = start.fork(), True
        try:
            matcher.accept_bytes(data)
        except GrammarViolation:
            readable = False
        assert (readable and matcher.is_accepting) == member, text
        assert prefix_ok(reference, data) == readable, text
        members += member
    assert 5 < members < 115


@pytest.mark.parametrize("words", [["<tool_call>"], ["ab"], ["aab"], ["aabaaa"], ["abababc"], ["abb", "aba"], ["ab", "aaa", "bb"], ["é€", "éa"]])
def test_free_text_is_what_contains_neither_trigger_nor_marker(words: list[str]) -> None:
    builder = Builder()
    reference = Reference(builder.program(text_until(builder, words)))
    alphabet = sorted({"a", "b", "é", *words[0][:3]})
    for size in range(8):
        for letters in itertools.islice(itertools.product(alphabet, repeat=size), 0, None, 7 if size > 5 else 1):
            text = "".join(letters)
            assert accepts(reference, text.encode()) == (text != "" and not any(w in text for w in words)), text


@pytest.mark.parametrize("trigger", ["ab", "aab", "aabaaa"])
def test_calls_come_after_the_first_trigger(trigger: str) -> None:
    builder = Builder()
    reference = Reference(builder.program(text_until(builder, [], [(trigger, builder.literal(b"!"))])))
    for size in range(1, 9):
        for letters in itertools.product("ab", repeat=size):
            text = "".join(letters)
            ends_there = text.find(trigger) == size - len(trigger)
            assert accepts(reference, f"{text}!".encode()) == (trigger not in text or (ends_there and text.endswith(trigger))), text


def tokens_for_text() -> Vocabulary:
    """Single bytes, and pieces that cross from text into calls and from call to call."""
    more = [
        b"<tool_call>",
        b"a<",
        b"<tool",
        b"_call",
        b'>\n{"',
        b'{"name',
        b'":"',
        b't2","',
        b"t20",
        b'0","arguments":',
        b"{}",
        b"}}",
        b"\n</",
        b"</tool_call>\n<tool_call>",
    ]
    return Vocabulary([bytes([byte]) for byte in range(256)] + [*more, None], stop_token_ids=[256 + len(more)])


@pytest.mark.parametrize("choice", ["auto", "required", "t200"])
@pytest.mark.parametrize("seed", range(12))
def test_random_turns_are_read_back_and_validate(choice: str, seed: int) -> None:
    rng, vocabulary = random.Random(seed), tokens_for_text()
    matcher = Grammar.from_tools(TOOLS, choice, parallel=3).matcher(vocabulary)
    data, left = b"", 150
    while True:
        row = np.unpackbits(matcher.guarded_mask(left).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(row).tolist()
        if matcher.is_accepting and (len(allowed) == 1 or rng.random() < 0.05):
            break
        likely = [t for t in allowed if t != len(vocabulary) - 1 and (t > 255 or chr(t) in "<tool_call>\né")]
        token = rng.choice(likely or [t for t in allowed if t != len(vocabulary) - 1])
        matcher.accept(token)
        data, left = data + (vocabulary.tokens[token] or b""), left - 1
    text = data.decode()
    reader = FormatReader(FORMATS["hermes"])
    reader.feed(text)
    turn = reader.finish()
    assert turn.unfinished == ""
    assert turn.text + "\n".join(call_text(call.name, call.arguments) for call in turn.calls) == text
    assert len(turn.calls) <= (1 if choice == "t200" else 3)
    assert choice == "auto" or (turn.calls and not turn.text)
    schemas = {tool["name"]: tool["parameters"] or {"maxProperties": 0} for tool in TOOLS}
    for call in turn.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


def read(matcher: Matcher, text: str) -> Matcher:
    matcher.accept_bytes(text.encode())
    return matcher


def only_bytes(matcher: Matcher, text: str) -> None:
    """Each byte of the text is the only one possible."""
    for byte in text.encode():
        assert np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist() == [byte]
        matcher.accept(byte)


def test_required_calls_begin_at_once_and_end_the_turn() -> None:
    matcher = Grammar.from_tools(TOOLS, "required").matcher(BYTES)
    only_bytes(matcher, '<tool_call>\n{"name":"')
    assert matcher.allows(ord("t"))
    assert matcher.allows(ord("o"))
    read(matcher, 't20"')
    only_bytes(matcher, ',"arguments":{}}\n</tool_call>')
    assert matcher.is_accepting
    assert not matcher.mask().view(np.uint8)[:32].any()  # nothing but the stop token


def test_a_named_tool_is_called_once_and_nothing_else() -> None:
    only_bytes(Grammar.from_tools(TOOLS, "t20", parallel=True).matcher(BYTES), call_text("t20", "{}"))


def test_any_number_of_calls() -> None:
    matcher = Grammar.from_tools(TOOLS, "required", parallel=True).matcher(BYTES)
    assert read(matcher, "\n".join([CALLS[1]] * 50)).is_accepting
    with pytest.raises(GrammarViolation):
        matcher.accept_bytes(b"\n\n")
    with pytest.raises(GrammarViolation):
        matcher.accept_bytes(b"and then")


def test_text_may_hold_what_only_looks_like_a_call() -> None:
    matcher = Grammar.from_tools(TOOLS, "none").matcher(BYTES)
    assert read(matcher, "</tool> <tool_call <TOOL_CALL> <tool_calls> <tool_call").is_accepting
    assert not matcher.allows(ord(">"))


ANSWER = {"type": "object", "properties": {"city": {"enum": ["<tool_call>", "Oslo"]}}, "required": ["city"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("choice", "text", "good"),
    [
        ("auto", '{"city":"<tool_call>"}', True),
        ("auto", CALLS[1], True),
        ("auto", "Oslo", False),
        ("auto", " " + CALLS[1], False),
        ("auto", '{"city":"Oslo"}' + CALLS[1], False),
        ("none", '{"city":"Oslo"}', True),
        ("none", CALLS[1], False),
        ("required", '{"city":"Oslo"}', False),
        ("required", CALLS[1], True),
    ],
)
def test_a_structured_answer_stands_in_the_place_of_text(choice: str, text: str, good: bool) -> None:
    program, report = turn_grammar(TOOLS, choice, output_schema=ANSWER)
    assert accepts(program, text.encode()) == good
    assert ("(answer)#/properties/city/enum" in report) == (choice != "required")


def test_without_tools_a_turn_is_text_or_the_answer() -> None:
    assert accepts(turn_grammar([], "auto")[0], b"Hi <there>")
    assert not accepts(turn_grammar([], "auto")[0], CALLS[1].encode())
    assert accepts(turn_grammar([], "auto", output_schema={"type": "null"})[0], b"null")


def test_undeclared_arguments_are_as_the_schema_says() -> None:
    open_tool = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}
    program, report = turn_grammar([open_tool, TOOLS[0]], "required")
    assert accepts(program, call_text("f", '{"x":1,"y":[2]}').encode())
    assert not accepts(program, call_text("f", '{"x":"1"}').encode())
    assert not accepts(program, call_text("f", "[]").encode())
    assert not accepts(program, call_text("t2", '{"on":true,"y":2}').encode())
    assert report["f#/properties/x/type"].status == report["t2#/additionalProperties"].status == "enforced"


def test_tools_are_dicts_or_objects_and_names_are_spelled_as_json() -> None:
    def add(a: int, b: int = 0) -> int:
        """Adds."""
        return a + b

    assert accepts(turn_grammar([Tool(add)], "required")[0], call_text("add", '{"a":1,"b":2}').encode())
    odd = 'a"\\é\n'
    assert accepts(turn_grammar([{"name": odd}], odd)[0], call_text(odd, "{}").encode())


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        (TOOLS, {"format": "morse"}, "'morse' is not known; the formats are deepseek-v3, "),
        (TOOLS, {"choice": "t3"}, "the name of a tool: t2, t20, t200, other"),
        ([], {"choice": "required"}, "there are no tools"),
        ([], {"choice": "t3"}, "there are none"),
        (TOOLS, {"parallel": 0}, "parallel is 0"),
        (TOOLS, {"parallel": 1.5}, "parallel is 1.5"),
        ([*TOOLS, {"name": "t2"}], {}, "two tools are named 't2'"),
        ([*TOOLS, {"parameters": {}}], {}, r"tools\[4\] has no name"),
        ([{"name": "\udc80"}], {}, "no UTF-8 form"),
        ([{"name": "f", "parameters": True}], {}, "tool 'f': #: parameters must be a JSON Schema as a dict, not bool"),
        ([{"name": "f", "parameters": {"type": "dict"}}], {}, "tool 'f': #/type: .*'dict'"),
        ([{"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "text"}}}}], {}, "tool 'f': #/properties/x/type"),
    ],
)
def test_what_is_malformed_is_named(tools: list[dict[str, Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        turn_grammar(tools, **options)


def test_errors_of_a_schema_name_the_tool_and_keep_their_attributes() -> None:
    tools = [*TOOLS, {"name": "bad", "parameters": {"type": "object", "properties": {"x": {"$ref": "#/x", "unevaluatedItems": 5}}}}]
    with pytest.raises((InvalidGrammar, UnsupportedSchema), match="tool 'bad': #/properties/x"):
        turn_grammar(tools)
    never = {"type": "object", "properties": {"x": False}, "required": ["x"]}
    with pytest.raises(UnsatisfiableSchema, match="tool 'never': #") as caught:
        turn_grammar([{"name": "never", "parameters": never}])
    assert caught.value.pointer.startswith("#")
    with pytest.raises(UnsatisfiableSchema, match="output_schema: #"):
        turn_grammar(TOOLS, output_schema=never)


def test_hundreds_of_tools_compile_at_once_and_step_by_byte() -> None:
    names = [f"t{n}" for n in range(300)]
    tools = [{"name": name, "parameters": {"type": "object", "properties": {name: {"type": "string", "maxLength": 300}}}} for name in names]
    start = time.perf_counter()
    grammar = Grammar.from_tools(tools, "required")
    assert time.perf_counter() - start < 5
    matcher = grammar.matcher(BYTES)
    for name in ("t0", "t2", "t29", "t299"):
        assert read(matcher.fork(), call_text(name, f'{{"{name}":"x"}}')).is_accepting
    read(matcher, '<tool_call>\n{"name":"t29')
    assert [chr(b) for b in range(256) if matcher.allows(b)] == ['"', *"0123456789"]
