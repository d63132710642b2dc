"""JSON Schema as a front end of the grammar algebra (see compile.py for the entry points)."""

from .compile import CompiledSchema, compile_schema, schema_node

__all__ = ["CompiledSchema", "compile_schema", "schema_node"]
