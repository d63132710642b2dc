"""Grammars in other people's decoding loops: masks applied to logits, and a logits processor for transformers.

Each module imports its own library; nothing here is imported by the rest of the package.
"""
