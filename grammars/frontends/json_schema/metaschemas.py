"""The meta-schemas of drafts 4 to 2020-12, which any schema may refer to by their URIs.

Data of the JSON Schema specification (metaschemas.json, https://json-schema.org, BSD licence), read when one is first asked for.
Knows nothing of references.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["metaschema"]


def metaschema(uri: str) -> Any:
    """The document at `uri` (absolute, without a fragment), the same object each time; None where there is none of that name."""
    return _all().get(uri) if "json-schema.org/draft" in uri else None


@cache
def _all() -> dict[str, Any]:
    text = files("agentkit.grammars.frontends.json_schema").joinpath("metaschemas.json").read_text(encoding="utf-8")
    documents: dict[str, Any] = json.loads(text)
    return documents
