"""Descriptions of languages (JSON Schema, Pydantic models, patterns, Lark, GBNF, whole turns), each turned into nodes of a Builder."""
