"""JSON Schema as a front end of the grammar algebra (see compile.py for the entry points)."""

from agentkit.grammars.frontends.json_schema.compile import CompiledSchema, compile_schema, schema_node

__all__ = ["CompiledSchema", "compile_schema", "schema_node"]
