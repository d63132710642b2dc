"""Docstrings as people write them: forms that the styles' own parsers pass over."""

from __future__ import annotations

import pytest

from agentkit.docstrings import describe


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        ("Sum.\nArgs:\n    a: First.\n    b: Second.\nReturns:\n    it", "Sum."),
        ("Sum.\n\nArgs:\n    `a`: First.\n    **b**: Second.", "Sum."),
        ("Sum.\n\n@param a: First.\n@param b: Second.\n@return: it", "Sum."),
        ("Args:\n        a: First.\n        b: Second.\n    ", ""),
        ("Args:\n        a: First.\n        b: Second.\n\n    Returns:\n        it", ""),
        ("\n    Args:\n        a: First.\n        b: Second.\n    ", ""),
        ("Sum.\r\n\r\nArgs:\r\n    a: First.\r\n    b: Second.\r\n", "Sum."),
        ("Sum.\n\tArgs:\n\t\ta: First.\n\t\tb: Second.", "Sum."),
    ],
    ids=["no blank line", "marked names", "epytext", "nothing else", "no summary", "first line empty", "line ends of Windows", "tabs"],
)
def test_what_is_documented_is_found(docstring: str, text: str) -> None:
    found = describe(docstring, ["a", "b"])
    assert (found.text, found.parameters) == (text, {"a": "First.", "b": "Second."})


@pytest.mark.parametrize("docstring", ["Args:", "Args:\n    ", "Notes:\n    a is not b", "Mail me@param.org", "Returns:\nArgs:\n"])
def test_what_documents_nothing_is_kept_as_it_is(docstring: str) -> None:
    assert describe(docstring, ["a"]).text.split() == docstring.split()
