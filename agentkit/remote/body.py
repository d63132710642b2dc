"""A turn as the JSON body of POST /chat/completions.

Input: a TurnRequest, and what the server takes. Messages follow OpenAI's rules, which some servers enforce: each call is
followed by its result (calls that the application kept for itself get one that says so), and the arguments of earlier calls
are JSON objects (what was not valid is wrapped, so that the model still sees what it wrote). Knows nothing of connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.errors import InvalidOption
from agentkit.messages import AssistantMessage, Message, RetryMessage, SystemMessage, ToolMessage, UserMessage
from agentkit.model import Sampling, ToolSpec, TurnRequest
from agentkit.protocol import compact, output_text
from agentkit.remote.servers import SERVERS, Server, strict_allowed
from agentkit.schema import JSONSchema

__all__ = ["chat_messages", "request_body"]

_KEPT = "(This call was handed to the application, which gave no result.)"
_ASKED = ("auto", "required", "none")


def request_body(request: TurnRequest, server: Server, model: str) -> dict[str, Any]:
    """The whole body, streaming.

    Raises:
        InvalidOption: a way of sampling that this kind of server does not know.
    """
    insisted = _answer_is_due(request, server)
    choice = "none" if insisted else request.tool_choice
    open_to_calls = bool(request.tools) and choice != "none"
    schema = request.output_schema
    shown = schema is not None and not (server.tells_schema and _enforceable(server, schema))
    body: dict[str, Any] = {
        "model": model,
        "messages": chat_messages(request, output_text(schema) if shown else "", server.blank),
        **({"stream": True, "stream_options": {"include_usage": True}} if server.streams_calls or not open_to_calls else {"stream": False}),
        **_sampling(request.sampling, server),
        **_tools(request, choice, server),
    }
    if schema is not None and _enforceable(server, schema) and (not open_to_calls or (choice == "auto" and server.schema_leaves_calls)):
        body["response_format"] = _response_format(schema, server)
    return body


def _enforceable(server: Server, schema: JSONSchema) -> bool:
    return server.roots is None or (schema.get("type") in server.roots and "anyOf" not in schema)


def _answer_is_due(request: TurnRequest, server: Server) -> bool:
    """The last answer did not match its schema, and this server can hold an answer to it only if no tool is open: then none is.

    An answer that matches and was refused for what it says (by a validator) may need a tool to become better.
    """
    if request.output_schema is None or request.tool_choice != "auto" or server.schema_leaves_calls or not _enforceable(server, request.output_schema):
        return False
    if not request.tools or len(request.messages) < 2:
        return False
    answer, refusal = request.messages[-2:]
    if not isinstance(refusal, RetryMessage) or refusal.tool_call_id is not None or not isinstance(answer, AssistantMessage):
        return False
    return not _matches(answer.content or "", request.output_schema)


def _matches(text: str, schema: JSONSchema) -> bool:
    from jsonschema import Draft202012Validator

    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
    except (ValueError, RecursionError):
        return False
    except re.error:  # a pattern in another dialect than Python's: the answer's validation here was what refused it
        return True


def _sampling(sampling: Sampling, server: Server) -> dict[str, Any]:
    made: dict[str, Any] = {server.max_tokens: sampling.max_tokens}
    for name in ("temperature", "top_p"):
        value = getattr(sampling, name)
        if value != 1.0 or server.sends_defaults:
            made[name] = value
    for name, off in (("top_k", 0), ("min_p", 0.0)):
        value = getattr(sampling, name)
        if name in server.sampling:
            made[name] = server.sampling[name] if value == off else value
        elif value != off:
            takers = ", ".join(repr(each.name) for each in SERVERS.values() if name in each.sampling)
            raise InvalidOption(f"{name} is {value}, but a server of the kind {server.name!r} has no {name}. Leave it out, or pass server= if it is {takers}")
    if sampling.seed is not None:  # the API's seeds are signed
        made["seed"] = sampling.seed - (1 << 64) if sampling.seed >= 1 << 63 else sampling.seed
    return made


def _tools(request: TurnRequest, choice: str, server: Server) -> dict[str, Any]:
    tools: Sequence[ToolSpec] = request.tools
    if not tools or (choice == "none" and not server.honours_none):
        return {}
    if choice == "required" and not server.requires_tool:
        choice = tools[0].name if len(tools) == 1 else "auto"
    wanted: Any = choice
    if choice not in _ASKED:
        if server.names_tool:
            wanted = {"type": "function", "function": {"name": choice}}
        else:
            tools, wanted = [tool for tool in tools if tool.name == choice], "required"
    made: dict[str, Any] = {"tools": [_tool(tool, server) for tool in tools], "tool_choice": wanted}
    if choice != "none":
        made["parallel_tool_calls"] = request.max_calls > 1
    return made


def _tool(tool: ToolSpec, server: Server) -> dict[str, Any]:
    strict = {"strict": True} if strict_allowed(server, tool.parameters) else {}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters, **strict}}


def _response_format(schema: JSONSchema, server: Server) -> dict[str, Any]:
    if server.response_type == "json_object":
        return {"type": "json_object", "schema": schema}
    strict = strict_allowed(server, schema) if server.strict == "openai" else True
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def chat_messages(request: TurnRequest, more: str = "", blank: str | None = None) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form; instructions, leading system messages and `more` make one system message. blank: see Server."""
    messages = list(request.messages)
    system = [request.instructions.strip()]
    while messages and isinstance(messages[0], SystemMessage):
        system.append(messages[0].content)
        del messages[0]
    text = "\n\n".join(part for part in (*system, more) if part)
    made: list[dict[str, Any]] = [{"role": "system", "content": text}] if text else []
    results = {m.tool_call_id: m.content for m in messages if isinstance(m, ToolMessage | RetryMessage) and m.tool_call_id is not None}
    for message in messages:
        for part in _message(message, results, blank):
            if made and made[-1]["role"] == part["role"] == "user":  # many templates want turns to alternate
                part = {"role": "user", "content": f"{made.pop()['content']}\n{part['content']}"}
            made.append(part)
    return made


def _message(message: Message, results: Mapping[str, str], blank: str | None) -> list[dict[str, Any]]:
    """A message, and after a turn with calls their results, whose own messages then give nothing."""
    if isinstance(message, SystemMessage):
        return [{"role": "system", "content": message.content}]
    if isinstance(message, AssistantMessage):
        if not message.tool_calls:
            return [{"role": "assistant", "content": message.content or ""}]
        calls = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call.arguments)}} for call in message.tool_calls]
        answers = [{"role": "tool", "tool_call_id": call.id, "content": results.get(call.id, _KEPT)} for call in message.tool_calls]
        content = message.content or blank
        text = {} if content is None else {"content": content}
        return [{"role": "assistant", **text, "tool_calls": calls}, *answers]
    if isinstance(message, UserMessage) or message.tool_call_id is None:
        return [{"role": "user", "content": message.content}]
    return []


def _object(arguments: str) -> str:
    """The text of a JSON object: as the model wrote it where that is one."""
    if not arguments.strip():
        return "{}"
    try:
        sound = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        sound = False
    return arguments if sound else compact({"invalid": arguments})
