"""What a grammar leaves of a token tree, what it adds, and what it lets follow.

Input: guesses and the matcher of a request. Guesses that the grammar forbids are cut before they cost a forward. Where it leaves
no choice, the reference decoding takes the forced tokens without asking the model, so they are put into the tree and guesses
that spell the same bytes otherwise are dropped; a draft may thus span forced runs. Knows nothing of proposers or models.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.errors import NoTokenPath

if TYPE_CHECKING:
    from agentkit.grammars import Matcher


def constrain(tree: TokenTree, matcher: Matcher, output: list[int], limit: int) -> TokenTree:
    """The part of `tree` that may follow, with forced runs put in, of at most `limit` nodes.

    matcher: stands behind `output`, the tokens generated so far; it is moved and brought back.
    """
    out = TokenTree()

    def visit(old: int, new: int, text: list[int]) -> None:
        for child in tree.children(old):
            token = tree.tokens[child]
            if len(out) >= limit:
                return
            if not matcher.allows(token):
                continue
            matcher.accept(token)
            if matcher.is_finished:  # a stop token: nothing follows, and the model says so itself
                matcher.rollback(1)
                continue
            run = matcher.forced_tokens([*text, token])[: limit - len(out) - 1]
            node, guess = tree.copy(child, out, new), child
            for forced in run:
                matcher.accept(forced)
                node = out.add(node, forced, forced=True)
                following = tree.child(guess, forced) if guess != LOST else None
                guess = LOST if following is None else following
            if guess != LOST:
                visit(guess, node, [*text, token, *run])
            matcher.rollback(1 + len(run))

    visit(ROOT, ROOT, output)
    return out


LOST = -2  # no guess left: the tree did not foresee what is forced


def masks_after(tree: TokenTree, matcher: Matcher) -> list[npt.NDArray[np.uint32]]:
    """The mask behind each node of a tree that the grammar allows; of no token where nothing spells what has to follow.

    matcher: stands before the tree; it is moved and brought back.
    """
    masks = [np.zeros(0, np.uint32)] * len(tree)

    def visit(node: int) -> None:
        for child in tree.children(node):
            matcher.accept(tree.tokens[child])
            with suppress(NoTokenPath):  # the request ends by that if it ever gets there
                masks[child] = matcher.mask()
            visit(child)
            matcher.rollback(1)

    visit(ROOT)
    return masks
