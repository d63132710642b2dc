"""What the tests of this folder share: verdicts of the slow reference matcher on a compiled schema.

`takes(schema, text)`: does the compiled language hold the text?  `check(schema, good, bad)`: both lists of texts, told apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agentkit.grammars import Grammar
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars import reference


def language(schema: Any, **options: Any) -> reference.Reference:
    make = compile_schema if isinstance(schema, (dict, bool)) else Grammar.from_pydantic
    return reference.Reference(make(schema, **options).program)


def takes(schema: Any, text: str, **options: Any) -> bool:
    return reference.accepts(language(schema, **options), text.encode("utf-8", "surrogatepass"))


def check(schema: Any, good: Iterable[str], bad: Iterable[str], **options: Any) -> None:
    """Every text of `good` is in the language, none of `bad` is."""
    known = language(schema, **options)
    refused = [t for t in good if not reference.accepts(known, t.encode("utf-8", "surrogatepass"))]
    taken = [t for t in bad if reference.accepts(known, t.encode("utf-8", "surrogatepass"))]
    assert (refused, taken) == ([], []), "(wrongly refused, wrongly accepted)"


def dump(value: Any) -> str:
    """The canonical compact spelling."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
