"""Grammars that a Lark text holds in place of terminals: `%json {...}`, and those given for `%declare`d names.

Input: the text of a grammar; output: the text with a declared terminal for each `%json`, and their schemas. Knows nothing of
how Lark is compiled.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agentkit.errors import InvalidGrammar

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|\n|(%json)\b')
"""What `%json` must not be looked for in (strings, comments, patterns), a line break, or `%json` itself."""


def cut_out_json(text: str) -> tuple[str, dict[str, Any]]:
    """Each `%json SCHEMA` becomes a terminal that is declared at the end: (text, schema by name).

    Line breaks stay where they are, so that lark's messages name the right line.
    Raises InvalidGrammar with the position where what follows `%json` is no JSON.
    """
    schemas: dict[str, Any] = {}
    out: list[str] = []
    at = owed = 0  # line breaks inside schemas come where their line ends
    while found := _TOKEN.search(text, at):
        out.append(text[at : found.start()])
        at = found.end()
        if found[1] is None:
            out.append(found[0] if found[0] != "\n" else "\n" * (1 + owed))
            owed *= found[0] != "\n"
            continue
        start = _after_space(text, at)
        try:
            schema, at = json.JSONDecoder().raw_decode(text, start)
        except ValueError as error:
            raise InvalidGrammar(f"%json must be followed by a JSON Schema: {error}", position=getattr(error, "pos", start)) from error
        owed += text.count("\n", found.end(), at)
        name = f"JSON_SCHEMA_{len(schemas)}"
        while name in text:
            name += "_"
        schemas[name] = schema
        out.append(f" {name} ")
    out.append(text[at:])
    return "".join(out) + "".join(f"\n%declare {name}\n" for name in schemas), schemas


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at
