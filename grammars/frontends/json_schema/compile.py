"""JSON Schema to a grammar: the front door of this package.

Input: a schema as parsed JSON; output: a `Program` (or a node inside a bigger grammar) whose texts are exactly the JSON
values that satisfy the schema, in the chosen style, and a `Report` of what became of each keyword. Knows nothing of
tokens or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentkit.errors import InvalidGrammar
from agentkit.grammars.expr import Builder, Node, Program
from agentkit.grammars.frontends.json_schema.beginning import beginning
from agentkit.grammars.frontends.json_schema.document import Document
from agentkit.grammars.frontends.json_schema.emit import Emitter, KeyOrder, Style, Whitespace
from agentkit.grammars.frontends.json_schema.expand import Expander
from agentkit.grammars.frontends.json_schema.solve import Solver
from agentkit.grammars.report import Report

Formats = Literal["enforce", "annotate"]


@dataclass(frozen=True)
class CompiledSchema:
    """A schema's language as a program, and what became of its keywords."""

    program: Program
    report: Report


def schema_node(
    builder: Builder,
    schema: Any,
    *,
    whitespace: Whitespace = "compact",
    key_order: KeyOrder = "declared",
    plain_integers: bool = False,
    formats: Formats = "enforce",
) -> tuple[Node, Report]:
    """The language of a schema as a node of `builder`, to embed it in a bigger grammar.

    No white space before the first or after the last token of the value. The schema is not changed and not kept.

    Args:
        builder: where the nodes go.
        schema: parsed JSON: a dict, or True or False. Draft 2020-12, or the draft that `$schema` names (04 to 2019-09).
        whitespace: "compact" (none) or "flexible" (between tokens at most one line break and 40 blanks before and after it).
        key_order: "declared" (as in the schema, undeclared keys once no required one is left) or "any".
        formats: "enforce" (those that formats.py knows) or "annotate" (none, as the standard has it unless told otherwise).
        plain_integers: integers are written without a zero fraction (`1`, never `1.0`), as programs that parse them like it.

    Raises:
        InvalidGrammar: the schema is malformed (with `pointer`).
        UnsupportedSchema: a keyword cannot be enforced exactly (with `pointer` and `keyword`).
        UnsatisfiableSchema: no value satisfies the schema (with `pointer`).
        GrammarTooComplex: a limit on nesting or on the number of alternatives was passed.
    """
    style = Style(whitespace, key_order, plain_integers)
    if not isinstance(schema, (dict, bool)):
        raise InvalidGrammar(f"#: a schema is an object, true or false, not {type(schema).__name__}; parse JSON text first", pointer="#")
    if formats not in ("enforce", "annotate"):
        raise ValueError(f"formats must be 'enforce' or 'annotate', not {formats!r}")
    document = Document(schema)
    expander = Expander(document, formats=formats == "enforce")
    root = expander.type_at(document.root)
    solver = Solver(expander)
    solver.solve(root)
    return Emitter(builder, solver, style).node(root), expander.report


def compile_schema(
    schema: Any,
    *,
    whitespace: Whitespace = "compact",
    key_order: KeyOrder = "declared",
    plain_integers: bool = False,
    formats: Formats = "enforce",
    builder: Builder | None = None,
) -> CompiledSchema:
    """The language of a schema as a program of its own; arguments and errors as for `schema_node`."""
    builder = Builder(beginning(Style(whitespace, key_order, plain_integers))) if builder is None else builder
    node, report = schema_node(builder, schema, whitespace=whitespace, key_order=key_order, plain_integers=plain_integers, formats=formats)
    return CompiledSchema(builder.program(node), report)
