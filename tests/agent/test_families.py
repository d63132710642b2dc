"""Which family a model belongs to, and how conversations reach a chat template that knows tools, or one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentkit import Agent
from agentkit.engine.models.chat_messages import chat_messages
from agentkit.engine.models.chat_template import ChatTemplate, ToolSupport
from agentkit.engine.models.tokenizer import Tokenizer as EngineTokenizer
from agentkit.engine.request import TokenEvent
from agentkit.errors import InvalidOption
from agentkit.grammars.frontends.turn_formats import FORMATS
from agentkit.local_model import LocalModel, _reasoning, _Spelling
from agentkit.messages import AssistantMessage, CallPart, RetryMessage, SystemMessage, ToolMessage, UserMessage
from agentkit.model import ToolSpec, TurnRequest
from agentkit.protocol import FAMILIES, FormatProtocol, calls_text, family_of
from tests.agent.scripted import ScriptedModel


def tokenizer(*special: str) -> EngineTokenizer:
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True) for name in special])
    return EngineTokenizer(raw)


# Templates in the manner of several families: calls parsed or as text, blank content or none, several calls or one.
TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
PARSED = TOOLS + (
    "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{{ m.content + '' }}{% for c in m.tool_calls %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {% for k, v in c.function.arguments.items() %}{"{{ k }}": {{ v | tojson }}}{% endfor %}}'
    "</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TEXT = TOOLS + (
    "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls and m.content is none %}{% for c in m.tool_calls %}"
    "<|call|>{{ c.function.name + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
SINGLE = TOOLS + (
    "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
NONE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "support"),
    [
        (PARSED, ToolSupport("parsed", "", True)),
        (TEXT, ToolSupport("text", None, True)),
        (SINGLE, ToolSupport("parsed", "", False)),
        (NONE, None),
        (TOOLS + NONE, None),  # tools are shown, calls are lost
        ("{{ raise_exception('no') }}", None),
    ],
)
def test_what_a_template_takes_is_found_out_by_asking_it(source: str, support: ToolSupport | None) -> None:
    assert ChatTemplate(source, tokenizer()).tool_support == support


TOOL = ToolSpec("get", "", {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False})
HISTORY = [
    SystemMessage(content="From the history."),
    UserMessage(content="Q"),
    AssistantMessage(content=None, tool_calls=(CallPart(id="call_a", name="get", arguments='{"x": 1.0}'), CallPart(id="call_b", name="get", arguments=""))),
    ToolMessage(tool_call_id="call_a", name="get", content="first result"),
    RetryMessage(tool_call_id="call_b", name="get", content="not valid"),
    AssistantMessage(content="A"),
    RetryMessage(content="Not an answer."),
]


@pytest.mark.parametrize("source", [PARSED, TEXT, SINGLE])
def test_a_template_that_knows_tools_gets_them(source: str) -> None:
    template = ChatTemplate(source, tokenizer())
    protocol = FormatProtocol("qwen", template.tool_support)
    request = TurnRequest(HISTORY, "Be brief.", [TOOL], output_schema={"type": "integer"})
    messages = protocol.render(request)
    assert protocol.tools(request) == [
        {"type": "function", "function": {"name": "get", "description": "", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    ]
    text = template.render(chat_messages(messages, template), tools=protocol.tools(request))
    assert "# Tools" not in text
    for part in ("Be brief.", "From the history.", '"x": 1.0', "first result", "not valid", "Not an answer.", '{"type":"integer"}'):
        assert part in text
    assert text.index("1.0") < text.index("first result") < text.index("not valid") < text.index("Not an answer.")
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert results == [call["id"] for message in messages for call in message.get("tool_calls", ())] == ["000000001", "000000002"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_template_without_tools_gets_them_written_out(format: str) -> None:
    protocol = FormatProtocol(format)
    request = TurnRequest(HISTORY, "Be brief.", [TOOL])
    assert protocol.tools(request) is None
    messages = protocol.render(request)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert '{"name":"get","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}' in messages[0]["content"]
    assert calls_text(FORMATS[format], [("<function-name>", "<args-json-object>")], quote=False) in messages[0]["content"]
    assert messages[2]["content"] == calls_text(FORMATS[format], [("get", '{"x": 1.0}'), ("get", "")])


def test_calls_that_are_written_out_keep_their_special_tokens_and_arguments_have_none() -> None:
    known = tokenizer("[TOOL_CALLS]", "[ARGS]")
    call = CallPart(id="a", name="get", arguments='{"s":"[ARGS]"}')
    messages = FormatProtocol("mistral-v11").render(TurnRequest([AssistantMessage(content="[TOOL_CALLS]", tool_calls=(call,))]))
    ids = ChatTemplate(NONE, known).encode(messages)
    trigger, args = known.special_tokens["[TOOL_CALLS]"], known.special_tokens["[ARGS]"]
    assert [token for token in ids if token in (trigger, args)] == [trigger, args]
    assert known.decode(ids) == '[assistant][TOOL_CALLS]get{"s":"[ARGS]"}'


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("<|im_start|>{{ m.content }}", None),
        ('# Tools ... <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "qwen"),
        ("<tool_call>\n<function=name>\n<parameter=x>", None),
        ("<|start_header_id|>system<|end_header_id|>", "llama3"),
        ("<start_of_turn>user", "gemma3"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS][{", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral-v11"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>x\n```json", "deepseek-v3"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek-v3.1"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
    ],
)
def test_families_are_known_by_their_templates(template: str, family: str | None) -> None:
    assert family_of(template) == family


def test_families_are_formats() -> None:
    assert FAMILIES.keys() <= FORMATS.keys()
    assert family_of("", {"<|channel|>": 1, "<|constrain|>": 2}) == "harmony"


class Loaded:
    """As much of an engine as the choice of a protocol looks at."""

    def __init__(self, source: str | None, *special: str) -> None:
        self.tokenizer = tokenizer(*special)
        self.chat_template = None if source is None else ChatTemplate(source, self.tokenizer)


def test_the_protocol_is_the_models_own_unless_it_is_given() -> None:
    engine: Any = Loaded(PARSED)
    assert LocalModel(engine).protocol_of(engine).format == "qwen"
    given = LocalModel(engine, "llama3").protocol_of(engine)
    assert isinstance(given, FormatProtocol)
    assert (given.format, given.native) == ("llama3", None)  # the template would show calls in Qwen's form
    own = LocalModel(engine, "qwen").protocol_of(engine)
    assert isinstance(own, FormatProtocol)
    assert own.native == ToolSupport("parsed", "", True)
    mine = FormatProtocol("mistral")
    assert LocalModel(engine, mine).protocol_of(engine) is mine
    assert LocalModel(engine).protocol_of(Loaded(None)).format == "hermes"  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="'morse' is not known; the protocols are deepseek-v3"):
        Agent("smollm2-135m", protocol="morse")
    with pytest.raises(InvalidOption, match="protocol is for local models"):
        Agent(ScriptedModel(), protocol="qwen")


@pytest.mark.parametrize(
    ("source", "end", "expected"),
    [("<think>", "<think>\n", "begun"), ("<think>", "<think>\n\n</think>\n\n", "none"), ("<think>", "assistant\n", "allowed"), ("", "assistant\n", "none")],
)
@pytest.mark.parametrize("special", [(), ("<think>", "</think>")], ids=["text", "tokens"])
def test_whether_it_reasons_is_read_off_the_prompt(source: str, end: str, expected: str, special: tuple[str, ...]) -> None:
    engine: Any = Loaded(source, *special)
    assert _reasoning(engine, FormatProtocol("qwen"), engine.tokenizer.encode(f"Question {end}", special=True)) == expected
    assert _reasoning(engine, FormatProtocol("harmony"), [1]) == "allowed"


def test_special_tokens_of_the_format_are_spelled_out_for_the_reader() -> None:
    known = tokenizer("[TOOL_CALLS]", "[ARGS]", "<|other|>")
    protocol = FormatProtocol("mistral-v11")
    text = 'é[TOOL_CALLS]get[ARGS]{"x":1}'
    ids = known.encode(text + "<|other|>", special=True)
    spelling = _Spelling(known, protocol)
    spelled = "".join(spelling.of(TokenEvent((token,), "", False)) for token in ids) + spelling.rest()
    assert spelled == text
    reader = protocol.reader(TurnRequest([], tools=[TOOL]))
    reader.feed(spelled)
    turn = reader.finish()
    assert (turn.text, json.loads(turn.calls[0].arguments)) == ("é", {"x": 1})
