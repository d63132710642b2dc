"""How families of models write an assistant's turn: reasoning, text, calls, answer.

A `TurnFormat` is a description in plain strings, from which the turn's grammar (turns.py), its reader and its writer
(agentkit/protocol.py) are all made, so they cannot drift apart. Every entry of FORMATS names what it was checked against.
Knows nothing of grammars, tokens or messages.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMATS", "TurnFormat"]


@dataclass(frozen=True)
class TurnFormat:
    """One family's way of writing a turn: `[reasoning] text trigger head NAME between ARGUMENTS tail separator head ... end`.

    triggers: what begins the calls of a turn; the first is the one that is written. Begins with a sign that no other part of a
        trigger or marker holds.
    quoted: NAME stands inside a JSON string; otherwise it is bare, and names are limited to letters, digits and `_.-`.
    specials: those parts of the strings that are special tokens in vocabularies that have them as such, and text in others.
    markers: what the family's conversations hold besides, and text must not.
    reasoning: (opening, closing) around what the model thinks before it answers.
    leading: calls begin the turn, or there are none.
    final, preamble: set where every text stands in a message of its own: what opens the answer, and (opening, closing) of text
        that is said before a call.
    single: a call ends the turn.
    """

    triggers: tuple[str, ...]
    head: str
    between: str
    tail: str = ""
    separator: str = ""
    end: str = ""
    quoted: bool = True
    specials: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    leading: bool = False
    final: str = ""
    preamble: tuple[str, str] | None = None
    single: bool = False

    @property
    def never_text(self) -> tuple[str, ...]:
        """What free text may hold nowhere (triggers of a `leading` format only at its beginning)."""
        opening = self.reasoning[:1] if self.reasoning else ()
        return tuple(dict.fromkeys((*self.markers, *opening, *(() if self.leading else self.triggers))))


_THINK = ("<think>", "</think>")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_MARKERS = ("<｜tool▁call▁", "<｜tool▁sep｜>", "<｜tool▁calls▁end｜>", "<｜tool▁output")  # none of them begins the trigger
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")

FORMATS: dict[str, TurnFormat] = {
    # Hermes 2 Pro's prompt, compact as SmolLM2 writes it.
    "hermes": TurnFormat(
        triggers=("<tool_call>",),
        head='\n{"name":"',
        between='","arguments":',
        tail="}\n</tool_call>",
        separator="\n<tool_call>",
        markers=("</tool_", "<tool_r"),  # of <tool_response>, which small models like to imitate
    ),
    # The chat templates of Qwen 2.5, Qwen 3 and QwQ: the same with blanks, and reasoning.
    "qwen": TurnFormat(
        triggers=("<tool_call>",),
        head='\n{"name": "',
        between='", "arguments": ',
        tail="}\n</tool_call>",
        separator="\n<tool_call>",
        specials=_THINK,
        markers=("</tool_", "<tool_r"),
        reasoning=_THINK,
    ),
    # Meta's model card of Llama 3.1 and 3.3 (JSON based tool calling); several calls as vLLM's llama3_json parser reads them.
    "llama3": TurnFormat(
        triggers=('{"name": "', '<|python_tag|>{"name": "'),
        head="",
        between='", "parameters": ',
        tail="}",
        separator='; {"name": "',
        specials=("<|python_tag|>",),
        markers=("<|python_tag|>",),
        leading=True,
    ),
    # Gemma 3's function calling guide: the JSON form, which is prompted, not trained into tokens.
    "gemma3": TurnFormat(triggers=('{"name": "',), head="", between='", "parameters": ', tail="}", separator='\n{"name": "', leading=True),
    # mistral-common's tokenizers v3 to v7: a JSON array; the SentencePiece ones put a blank after the token.
    "mistral": TurnFormat(
        triggers=("[TOOL_CALLS] [", "[TOOL_CALLS]["),
        head='{"name": "',
        between='", "arguments": ',
        tail="}",
        separator=", ",
        end="]",
        specials=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]", "[TOOL_RESULTS]"),
    ),
    # mistral-common's tokenizers v11 and later.
    "mistral-v11": TurnFormat(
        triggers=("[TOOL_CALLS]",),
        head="",
        between="[ARGS]",
        separator="[TOOL_CALLS]",
        quoted=False,
        specials=("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        markers=("[TOOL_RESULTS]", "[ARGS]"),
        reasoning=("[THINK]", "[/THINK]"),
    ),
    # The chat templates of DeepSeek V3 (0324) and R1.
    "deepseek-v3": TurnFormat(
        triggers=(_DEEPSEEK[0],),
        head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        between="\n```json\n",
        tail="\n```<｜tool▁call▁end｜>",
        separator="\n",
        end=_DEEPSEEK[4],
        quoted=False,
        specials=(*_DEEPSEEK, *_THINK),
        markers=_DEEPSEEK_MARKERS,
        reasoning=_THINK,
    ),
    # The chat template of DeepSeek V3.1.
    "deepseek-v3.1": TurnFormat(
        triggers=(_DEEPSEEK[0],),
        head="<｜tool▁call▁begin｜>",
        between="<｜tool▁sep｜>",
        tail="<｜tool▁call▁end｜>",
        end=_DEEPSEEK[4],
        quoted=False,
        specials=(*_DEEPSEEK, *_THINK),
        markers=_DEEPSEEK_MARKERS,
        reasoning=_THINK,
    ),
    # OpenAI's harmony format (gpt-oss). <|call|> and <|return|> are stop tokens: a call ends the turn.
    "harmony": TurnFormat(
        triggers=("<|channel|>commentary to=functions.",),
        head="",
        between=" <|constrain|>json<|message|>",
        quoted=False,
        specials=_HARMONY,
        markers=_HARMONY,
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        final="<|channel|>final<|message|>",
        preamble=("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
        single=True,
    ),
}
