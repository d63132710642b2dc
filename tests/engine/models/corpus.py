"""Texts that tokenizers get wrong: code, JSON, runs of blanks, many scripts, emoji, control characters, numbers, half-special tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "Hello, world!",
    "  two leading blanks and two trailing  ",
    "tabs\tand\r\nline\n\n\nbreaks \n \n  x",
    "I'm you're he'll WE'VE don't it's 'quoted' rock'n'roll",
    "0 1 12 123 1234 12345 3.14159 1,000,000 -7 1e-10 0x1F ½ ² ٣ Ⅷ",
    "x1y22z333 v1.2.3 2024-01-31T10:20:30Z",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "units": null, "list": [1, 2.5, true]}}',
    json.dumps({"nested": {"a": [{"b": 'c\\n"d"'}] * 3}}, indent=4),
    "def f(x: int) -> int:\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n",
    "<div class='a'>&nbsp;&lt;</div> <!-- no --> a<b>c d|e||f <| |> <|im_ end|>",
    "Ünïcödé façade Ångström naïve Straße ŒÆ é e\u0301",
    "你好，世界！这是一个测试。日本語のテキスト カタカナ 한국어 텍스트입니다",
    "Привет, мир! Україна مرحبا بالعالم שלום עולם नमस्ते दुनिया ไทย",
    "😀 👍🏽 👨‍👩‍👧‍👦 🇺🇸 ❤️ 🏳️‍🌈",
    "\u200b\u200d\u00a0\u2003\ufeff\u2028 ĠĊĉ ▁▁x <0x0A>",
    "$%^&*()_+-=[]{};':\",./<>?`~\\|@#",
    "AAAAAAAAAAAAAAAAAAAAAAAA bbbbbbbbbbbbbbbbbbbbbbb !!!!!!!!!!!!!!!!!!!! ........",
    "\x00\x01\x07\x1b[31m\x7f",
    " " * 40 + "x" + " " * 17 + "y" + "\n" * 33,
]


def texts(seed: int = 0, extra: int = 400) -> list[str]:
    """The list above, this project's own sources, and random mixtures of pieces of all of them."""
    draw = random.Random(seed)
    found = TEXTS + [file.read_text(encoding="utf-8")[:4000] for file in sorted(Path(__file__).parent.glob("*.py"))]
    pieces = [text[start : start + 7] for text in found for start in range(0, min(len(text), 300), 7)]
    return found + ["".join(draw.choices(pieces, k=draw.randint(1, 12))) for _ in range(extra)]
