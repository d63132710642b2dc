"""Every family's turn: what the grammar lets through is read back to exactly the calls and texts that were written.

Walks are random, over single bytes and the format's special tokens, drawn towards what looks like the format itself.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentkit.errors import GrammarViolation, InvalidGrammar
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.frontends.turn_formats import FORMATS, TurnFormat
from agentkit.model import CallClosed, ParsedCall, ReasoningPiece, TextPiece, Turn
from agentkit.protocol import calls_text, compact
from agentkit.turn_reader import FormatReader

NESTED = {
    "type": "object",
    "properties": {"o": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2}}}},
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"name": "get", "parameters": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 99}}, "additionalProperties": False}},
    {"name": "get_all", "parameters": NESTED},
    {"name": "get.all-2", "parameters": None},
]
SCHEMAS = {tool["name"]: tool["parameters"] or {"maxProperties": 0} for tool in TOOLS}
ANSWER = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"], "additionalProperties": False}


def vocabulary_of(form: TurnFormat, special: bool) -> tuple[Vocabulary, dict[int, str]]:
    """Single bytes, and the format's special tokens as tokens of their own, or as text; the last is the stop token."""
    names = {256 + number: name for number, name in enumerate(form.specials)}
    more: list[bytes | None] = [None if special else name.encode() for name in form.specials]
    stop = 256 + len(more)
    vocabulary = Vocabulary(
        [bytes([byte]) for byte in range(256)] + [*more, None], [stop], special_tokens={name: i for i, name in names.items()} if special else None
    )
    return vocabulary, names


def begins(form: TurnFormat, trigger: str) -> str:
    """The part of a trigger that text is searched for: its special token, or all of it."""
    return next((name for name in form.specials if trigger.startswith(name)), trigger)


def written(form: TurnFormat, *calls: tuple[str, str]) -> str:
    return calls_text(form, calls)


def accept_text(matcher: Matcher, form: TurnFormat, text: str) -> Matcher:
    """The text with its special tokens as tokens, as a model writes them."""
    known = matcher.vocabulary.special_tokens
    while text:
        found = min(((at, name) for name in known if (at := text.find(name)) >= 0), default=(len(text), ""))
        if found[0]:
            matcher.accept_bytes(text[: found[0]].encode())
        if found[1]:
            matcher.accept(known[found[1]])
        text = text[found[0] + len(found[1]) :]
    return matcher


def allowed(matcher: Matcher, left: int) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.guarded_mask(left).view(np.uint8), bitorder="little")).tolist()


def walk(rng: random.Random, matcher: Matcher, names: dict[int, str], form: TurnFormat, left: int = 260) -> str:
    """A random turn, special tokens spelled out."""
    likely = set("".join((*form.triggers, form.head, form.between, form.tail, form.separator, form.end, *form.never_text)).encode())
    data = b""
    while left > 0:
        tokens = [t for t in allowed(matcher, left) if t not in matcher.vocabulary.stop_token_ids]
        if not tokens or (matcher.is_accepting and rng.random() < 0.04):
            break
        token = rng.choice([t for t in tokens if t in names or t in likely] * (rng.random() < 0.85) or tokens)
        matcher.accept(token)
        data += names[token].encode() if token in names else bytes([token])
        left -= 1
    assert matcher.is_accepting
    return data.decode()


def read(form: TurnFormat, text: str, size: int, **options: Any) -> Turn:
    """The turn, fed in pieces; what came as events adds up to it."""
    reader = FormatReader(form, **options)
    pieces = [piece for start in range(0, len(text), size) for piece in reader.feed(text[start : start + size])]
    turn = reader.finish()
    assert turn.text.startswith("".join(piece.text for piece in pieces if isinstance(piece, TextPiece)))
    assert turn.reasoning.startswith("".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece)))
    assert tuple(piece.call for piece in pieces if isinstance(piece, CallClosed)) == turn.calls
    return turn


def shape(form: TurnFormat, turn: Turn, reasoning: str) -> set[str]:
    """The texts that a turn with these parts may be: written from the description of the format, not from its grammar."""
    calls = written(form, *((call.name, call.arguments) for call in turn.calls))
    if form.final:
        return {calls} if turn.calls else {form.final + turn.text}
    opening, closing = form.reasoning or ("", "")
    thought = {""}
    if reasoning != "none":
        start = "" if reasoning == "begun" else opening
        thought = {f"{start}{turn.reasoning}{closing}{blank}" for blank in ("", "\n", "\n\n", "\n\n\n", "\n\n\n\n")}
        thought |= {""} if reasoning == "allowed" and not turn.reasoning else set()
    spellings = {calls} | {calls.replace(form.triggers[0], trigger, 1) for trigger in form.triggers if calls}
    return {f"{before}{turn.text}{spelled}" for before in thought for spelled in spellings}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(("choice", "reasoning"), [("auto", "none"), ("auto", "allowed"), ("required", "begun"), ("get_all", "none")])
def test_any_turn_is_read_back_as_it_was_written(format: str, special: bool, choice: str, reasoning: Any) -> None:
    form = FORMATS[format]
    rng = random.Random(f"{format} {special} {choice} {reasoning}")
    vocabulary, names = vocabulary_of(form, special)
    grammar = Grammar.from_tools(TOOLS, choice, parallel=3, format=format, reasoning=reasoning)
    state = reasoning if form.reasoning else "none"
    seen = 0
    for _ in range(4):
        text = walk(rng, grammar.matcher(vocabulary), names, form)
        turn = read(form, text, rng.choice([1, 3, 1000]), reasoning=state)
        assert turn.unfinished == "", text
        if not form.final:
            assert text in shape(form, turn, state), text
        else:
            assert text.endswith(tuple(shape(form, turn, state))) or (not turn.calls and text.endswith(turn.text[-1:])), text
        assert len(turn.calls) <= (1 if form.single or choice in SCHEMAS else 3)
        assert turn.calls or choice == "auto"
        for call in turn.calls:
            assert choice not in SCHEMAS or call.name == choice
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        seen += len(turn.calls)
    assert seen or choice == "auto"


@pytest.mark.parametrize("format", FORMATS)
def test_calls_as_they_are_written(format: str) -> None:
    """Names that begin each other, nested JSON, empty arguments, look-alikes of the format inside strings."""
    form = FORMATS[format]
    vocabulary, _ = vocabulary_of(form, True)
    odd = compact({"s": f'{form.triggers[0]}{form.end}{form.tail}{form.between} }}]"\\ é'})
    calls = [("get_all", '{"o":{"a":["}]","{"]}}'), ("get", "{}"), ("get.all-2", "{}"), ("odd", odd)]
    calls = calls[-1:] if form.single else calls
    tools = [*TOOLS, {"name": "odd", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}, "additionalProperties": False}}]
    text = written(form, *calls)
    matcher = Grammar.from_tools(tools, "required", parallel=4, format=format, reasoning="none").matcher(vocabulary)
    in_string = text.index('{"s"')
    accept_text(matcher, form, text[:in_string])
    matcher.accept_bytes(odd.encode())
    accept_text(matcher, form, text[in_string + len(odd) :])
    assert matcher.is_accepting
    for size in (1, 2, 5, 10_000):
        assert read(form, text, size) == Turn("", tuple(ParsedCall(name, arguments) for name, arguments in calls))


@pytest.mark.parametrize("format", [name for name, form in FORMATS.items() if not form.final])
def test_text_that_only_looks_like_a_call(format: str) -> None:
    form = FORMATS[format]
    vocabulary, _ = vocabulary_of(form, True)
    start = begins(form, form.triggers[0])[:-1] + "."
    for choice, tools in (("auto", TOOLS), ("none", TOOLS), ("auto", [])):
        matcher = Grammar.from_tools(tools, choice, format=format, reasoning="none").matcher(vocabulary)
        matcher.accept_bytes(start.encode())
        assert matcher.is_accepting
        with pytest.raises(GrammarViolation):
            Grammar.from_tools(tools, "none", format=format, reasoning="none").matcher(vocabulary).accept_bytes(form.triggers[0].encode())
    assert read(form, start, 2) == Turn(start)
    assert read(form, form.triggers[0] + "x", 2, calls=False).text == form.triggers[0] + "x"


@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_of_a_schema_is_one_more_branch(format: str) -> None:
    form = FORMATS[format]
    vocabulary, _ = vocabulary_of(form, True)
    grammar = Grammar.from_tools(TOOLS, format=format, output_schema=ANSWER, reasoning="allowed")
    for text in (form.final + '{"name":"get"}', written(form, ("get", "{}"))):
        assert accept_text(grammar.matcher(vocabulary), form, text).is_accepting
    with pytest.raises(GrammarViolation):
        accept_text(grammar.matcher(vocabulary), form, form.final + "Oslo")
    assert read(form, form.final + '{"name":"get"}', 1, structured=True) == Turn('{"name":"get"}')
    assert read(form, written(form, ("get", "{}")), 1, structured=True).calls == (ParsedCall("get", "{}"),)


@pytest.mark.parametrize("format", [name for name, form in FORMATS.items() if form.reasoning])
def test_reasoning_comes_first_and_is_no_text(format: str) -> None:
    form = FORMATS[format]
    assert form.reasoning is not None
    opening, closing = form.reasoning
    vocabulary, _ = vocabulary_of(form, True)
    call = written(form, ("get", "{}"))
    text = f"{opening}Call get? é{closing}{call}"
    assert accept_text(Grammar.from_tools(TOOLS, "required", format=format).matcher(vocabulary), form, text).is_accepting
    assert read(form, text, 3, reasoning="allowed") == Turn("", (ParsedCall("get", "{}"),), reasoning="Call get? é")
    with pytest.raises(GrammarViolation):
        accept_text(Grammar.from_tools(TOOLS, format=format, reasoning="none").matcher(vocabulary), form, text)
    if form.final:
        return
    begun = Grammar.from_tools(TOOLS, format=format, reasoning="begun").matcher(vocabulary)
    accept_text(begun, form, "Hm.\n")
    assert not begun.is_accepting
    assert accept_text(begun, form, f"{closing}\n\nHello.").is_accepting
    assert read(form, f"Hm.\n{closing}\n\nHello.", 2, reasoning="begun") == Turn("Hello.", reasoning="Hm.\n")
    cut = read(form, "Hm. ", 2, reasoning="begun")
    assert (cut.text, cut.reasoning) == ("", "Hm. ")


def test_harmony_announces_in_a_message_of_its_own() -> None:
    form = FORMATS["harmony"]
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"x":1}'
    )
    matcher = accept_text(Grammar.from_tools(TOOLS, format="harmony").matcher(vocabulary_of(form, True)[0]), form, text)
    assert matcher.is_accepting
    assert allowed(matcher, 10) == [256 + len(form.specials)]  # the stop token: one call a turn
    assert read(form, text, 4, reasoning="allowed") == Turn("I look it up.", (ParsedCall("get", '{"x":1}'),), reasoning="Think.")
    assert read(form, text[:-9], 4, reasoning="allowed").unfinished
    assert read(form, "<|channel|>final<|message|>Hi", 2, reasoning="allowed") == Turn("Hi")


def test_both_ways_of_llama_and_mistral_begin_calls() -> None:
    for format, text in (
        ("llama3", '<|python_tag|>{"name": "get", "parameters": {}}'),
        ("llama3", '{"name": "get", "parameters": {}}; {"name": "get_all", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "get", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS][{"name": "get", "arguments": {}}, {"name": "get", "arguments": {}}]'),
        ("mistral-v11", "[TOOL_CALLS]get[ARGS]{}[TOOL_CALLS]get[ARGS]{}"),
    ):
        form = FORMATS[format]
        matcher = Grammar.from_tools(TOOLS, "required", parallel=True, format=format, reasoning="none").matcher(vocabulary_of(form, True)[0])
        assert accept_text(matcher, form, text).is_accepting, text
        assert len(read(form, text, 3).calls) == text.count("get"), text


@pytest.mark.parametrize("format", [name for name, form in FORMATS.items() if form.leading])
def test_calls_that_must_come_first_are_text_anywhere_else(format: str) -> None:
    form = FORMATS[format]
    call = written(form, ("get", "{}"))
    for before in ("\n", " ", "I say ", "{"):
        grammar = Grammar.from_tools(TOOLS, format=format)
        assert accept_text(grammar.matcher(vocabulary_of(form, True)[0]), form, before + call).is_accepting
        assert read(form, before + call, 2) == Turn(before + call)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_cut_is_unfinished(format: str) -> None:
    form = FORMATS[format]
    text = written(form, ("get", '{"x":12}'))
    cut = text[: text.index("12") + 1]
    assert read(form, cut, 3) == Turn("", (), cut)


def test_calls_are_read_whatever_the_blanks() -> None:
    text = '[TOOL_CALLS] [ {"name" : "get" ,\n "arguments":{"x": 1}} ,{"name":"get","arguments": {}} ]'
    assert read(FORMATS["mistral"], text, 2).calls == (ParsedCall("get", '{"x": 1}'), ParsedCall("get", "{}"))


def test_bare_names_and_reasoning_are_checked() -> None:
    with pytest.raises(InvalidGrammar, match="'get weather' stands bare"):
        Grammar.from_tools([{"name": "get weather"}], format="harmony")
    with pytest.raises(InvalidGrammar, match="reasoning is 'yes'"):
        Grammar.from_tools(TOOLS, reasoning="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_descriptions_keep_what_the_automaton_needs(form: TurnFormat) -> None:
    """A word's first sign occurs nowhere else in any word, and no marker begins a trigger unless it is a token of its own."""
    words = [*form.never_text, *(form.reasoning or ())[1:], *form.triggers]
    words = [begins(form, word) for word in words]
    firsts = {word[0] for word in words}
    assert not any(sign in word[1:] for word in words for sign in firsts)
    for trigger in form.triggers:
        assert not any(trigger.startswith(marker) and marker not in form.specials for marker in form.markers), trigger
