"""What the servers that speak this API take, and which one answers.

They differ in the names of options, in whether a demanded tool or the schema of an answer is enforced, and in whether an
enforced schema leaves the model free to call a tool: with vLLM, SGLang and llama.cpp it does not, so there the schema is
enforced only in turns without tools. Input: the answer to GET /models. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentkit.schema import JSONSchema, subschemas

__all__ = ["OTHER", "SERVERS", "Server", "recognised", "strict_allowed"]

_GRAMMAR_SAMPLING = {"top_k": 0, "min_p": 0.0}


@dataclass(frozen=True)
class Server:
    """One kind of server.

    max_tokens: its name for the bound on a turn.
    sampling: options beyond the standard that it takes, with the value that switches each off. They are always sent, since
        these servers otherwise take what a model's own configuration suggests.
    sends_defaults: temperature and top_p are sent where they are 1.0 too; OpenAI's reasoning models refuse to be told.
    requires_tool: it knows tool_choice "required"; else a lone tool is named, and several are left to the model (the loop insists on a call).
    streams_calls: turns that may call are streamed; else they come in one piece.
    names_tool: it takes the name of a demanded tool; else that tool alone is sent, as required.
    honours_none: it obeys tool_choice "none"; else no tools are sent then.
    schema_leaves_calls: the schema of an answer binds answers only, so that it can stand beside tools.
    tells_schema: it tells the model of that schema; else the prompt does.
    roots: what a schema of an answer may be at its root; None: anything.
    response_type: the kind of response_format that carries a schema.
    blank: content of a turn that only calls; None: the field is left out, which most servers want.
    strict: which schemas of arguments it can enforce on request ("strict"); None: it does not know the word.
    """

    name: str
    max_tokens: str = "max_tokens"
    sampling: Mapping[str, float] = field(default_factory=dict)
    sends_defaults: bool = True
    requires_tool: bool = True
    streams_calls: bool = True
    names_tool: bool = True
    honours_none: bool = True
    schema_leaves_calls: bool = False
    tells_schema: bool = False
    roots: tuple[str, ...] | None = None
    response_type: Literal["json_schema", "json_object"] = "json_schema"
    blank: str | None = None
    strict: Literal["openai", "grammar"] | None = None


OTHER = Server("other", honours_none=False)

SERVERS: dict[str, Server] = {
    server.name: server
    for server in (
        Server(
            "openai",
            "max_completion_tokens",
            sends_defaults=False,
            schema_leaves_calls=True,
            tells_schema=True,
            roots=("object",),
            strict="openai",
        ),
        Server("vllm", sampling=_GRAMMAR_SAMPLING, strict="grammar"),
        Server("sglang", sampling={"top_k": -1, "min_p": 0.0}, strict="grammar"),
        Server("llamacpp", sampling=_GRAMMAR_SAMPLING, names_tool=False),
        Server("llama-cpp-python", sampling=_GRAMMAR_SAMPLING, requires_tool=False, streams_calls=False, response_type="json_object", blank=""),
        Server("ollama", names_tool=False, honours_none=False),
        Server("lmstudio", names_tool=False, sampling={"top_k": 0, "min_p": 0.0}),
        OTHER,
    )
}

# who a listing of models says they belong to
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "me": "llama-cpp-python", "library": "ollama", "organization_owner": "lmstudio"}


def recognised(models: Sequence[Mapping[str, Any]], headers: Mapping[str, str]) -> Server:
    """The kind of server that gave this listing of models, by its own words; OTHER where they say nothing known."""
    if headers.get("server", "").lower().startswith("llama.cpp"):
        return SERVERS["llamacpp"]
    owners = {str(model.get("owned_by", "")).lower() for model in models}
    kinds = {_OWNERS[owner] for owner in owners if owner in _OWNERS}
    return SERVERS[kinds.pop()] if len(kinds) == 1 else OTHER


_OPENAI_KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "description", "title", "$ref", "$defs"}
_OPENAI_KEYWORDS |= {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
_OPENAI_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_OPENAI_DEPTH = 5  # levels of objects within objects that are certain to be taken
_NOT_IN_GRAMMARS = {"multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "patternProperties", "propertyNames"}
_NOT_IN_GRAMMARS |= {"minProperties", "maxProperties", "not", "if", "then", "else", "dependentSchemas", "dependentRequired"}
_NOT_IN_GRAMMARS |= {"unevaluatedProperties", "unevaluatedItems"}


def strict_allowed(server: Server, schema: JSONSchema) -> bool:
    """Whether the server enforces this schema exactly when asked to."""
    if server.strict == "openai":
        return schema.get("type") == "object" and "anyOf" not in schema and _in_openai_subset(schema)
    return server.strict == "grammar" and not _uses(schema, _NOT_IN_GRAMMARS)


def _in_openai_subset(schema: JSONSchema, depth: int = 1) -> bool:
    """OpenAI's structured outputs: closed objects whose properties are all required, a few keywords and formats."""
    if schema.keys() - _OPENAI_KEYWORDS or ("format" in schema and schema["format"] not in _OPENAI_FORMATS) or depth > _OPENAI_DEPTH:
        return False
    if schema.get("type") == "object":
        depth += 1
        names = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != names.keys():
            return False
    if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"}:  # anything at all
        return False
    return all(isinstance(part[key], dict) and _in_openai_subset(part[key], depth) for part, key in subschemas(schema))


def _uses(schema: Any, keywords: set[str]) -> bool:
    if not isinstance(schema, dict):
        return False
    return bool(schema.keys() & keywords) or any(_uses(part[key], keywords) for part, key in subschemas(schema))
