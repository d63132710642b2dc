"""What nearly every schema's grammar holds, made once per process and style: free values, strings, numbers, names of keys.

Input: a style; output: nodes for a Builder to begin with. Holds nothing of any user's schema.
"""

from __future__ import annotations

from functools import cache

from agentkit.grammars.expr import Beginning, Builder
from agentkit.grammars.frontends.json_schema.document import Document
from agentkit.grammars.frontends.json_schema.emit import Emitter, Style
from agentkit.grammars.frontends.json_schema.expand import Expander
from agentkit.grammars.frontends.json_schema.solve import Solver

_USUAL = [{"type": "integer"}, *({"type": kind, "minimum": least} for kind, least in (("integer", 0), ("integer", 1), ("number", 0)))]
_SCHEMA = {"properties": {str(i): schema for i, schema in enumerate(_USUAL)}}


@cache
def beginning(style: Style) -> Beginning:
    """Nodes of any value and of the usual scalars in a style."""
    expander = Expander(Document(_SCHEMA))
    solver = Solver(expander)
    root = expander.type_at(expander.document.root)
    solver.solve(root)
    builder = Builder()
    Emitter(builder, solver, style).node(root)
    return builder.beginning()
