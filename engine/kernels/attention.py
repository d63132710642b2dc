"""Attention over pages: what a set of tokens gets from one range of keys, and the merge of ranges.

Keys are cut at absolute positions into ranges of RANGE. A task is one range of one sequence's pages, or of pages that several
sequences share, and the tokens that attend to it; each (token, head) gets a partial result per range: a sum of values, the
largest score and the sum of exponentials, merged afterwards in the order of the ranges (FlashDecoding; cascade: arXiv:2501.01005).
A partial result depends on nothing but that token and those keys: which tokens share a task, how long a span is, and where it
began change no bit. Pages are read in place; those of keys are turned around once for all tokens of the task.

Where a window leaves old keys out, ranges that no token of the batch can see are not planned: their pages may be gone. Sinks, the first
keys of a sequence (StreamingLLM, arXiv:2309.17453), are a range of their own, of the tokens that do not have them in their window. To
those tokens the sinks are as near as if nothing lay between them and the window: their queries are turned back by as many positions as
were left out.

Where the attention that each key receives is wanted (H2O, arXiv:2306.14048), the exponentials of all scores are kept until the ranges are
merged; what they were divided by is known then.

Guesses that branch (tree attention: arXiv:2305.09781) lie in slots behind the known tokens, a token's own path among others'. Its
scores are moved together before the softmax and back after it, so that its result is bit for bit that of its path alone. The slots
of one tree must lie in one range.
"""

from __future__ import annotations

import math

import numpy as np

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kernels.library import inner, kernel
from agentkit.engine.kernels.linear import multiply
from agentkit.engine.kernels.rows import mix, rotate_back
from agentkit.engine.kernels.sync import chunk_of, draw, finish_chunk, next_stage, stage_of
from agentkit.engine.kernels.tiles import (
    LANES,
    WIDTH,
    add_row,
    cap_all,
    exponentials_of,
    in_whole_numbers,
    largest_of,
    row_size,
    scale_row,
    transpose_page,
    widen_row,
)  # fmt: skip

RANGE = 256  # keys of a task
RANGE_PAGES = RANGE // PAGE
ROWS = 96  # (token, head) pairs of a task at most

# columns of the table of tasks
FIRST_PAGE, FIRST_KEY, KEYS, FIRST_ROW, ROW_COUNT, FIRST_PART, SINKS, TASK_COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7


@kernel
def plan(pages, first_page, starts, offsets, counts, group, tasks, rows, parts):
    """Fills `tasks` and `rows`, and parts[t, i] = number of the partial result of token t over the i-th range of its span (-1: none).

    pages [tables, n]: of all spans one after the other, those of span s from first_page[s], beginning with range starts[s]; where layers
    differ in what they keep, a row for each table. Returns (tasks, rows, partial results).
    """
    tile = max(1, ROWS // group)
    parts[:] = -1
    task = row = part = 0
    begin = 0
    for span in range(offsets.size):
        end = offsets[span] + counts[span]
        for r in range(starts[span], (end + RANGE - 1) // RANGE):
            if _leader(pages, first_page, starts, offsets, span, r) < span:
                continue
            listed, start, other_begin = row, r * RANGE, begin
            for other in range(span, offsets.size):
                if other == span or _leader(pages, first_page, starts, offsets, other, r) == span:
                    for t in range(counts[other]):
                        if offsets[other] + t >= start:
                            rows[row] = other_begin + t
                            row += 1
                other_begin += counts[other]
            shared = (r + 1) * RANGE <= offsets[span]
            at = listed
            while at < row:
                size = min(tile, row - at)
                # of one span alone unless shared, so the last token of the tile is the latest
                last = start + RANGE if shared else offsets[span] + rows[at + size - 1] - begin + 1
                _task(tasks[task], first_page[span] + (r - starts[span]) * RANGE_PAGES, start, min(RANGE, last - start), at, size, part, 0)
                at_token, first = 0, 0  # where the tokens of the row's span begin
                for i in range(size):
                    while rows[at + i] >= first + counts[at_token]:
                        first += counts[at_token]
                        at_token += 1
                    parts[rows[at + i], r - starts[at_token]] = part + i
                part += size
                at += size
                task += 1
        begin += counts[span]
    return task, row, part


@kernel
def plan_sinks(first_page, ends, positions, apart, sinks, group, task, row, part, tasks, rows, parts):
    """Adds the tasks of the sinks for tokens at positions from `apart` on; their partial results stand in the last column of `parts`.

    first_page[s]: where the pages of span s's sinks are listed; ends[s]: the token behind its last one.   Returns (tasks, partial results).
    """
    tile, begin = max(1, ROWS // group), 0
    for span in range(ends.size):
        listed = row
        for t in range(begin, ends[span]):
            if positions[t] >= apart:
                rows[row] = t
                row += 1
        begin = ends[span]
        for at in range(listed, row, tile):
            size = min(tile, row - at)
            _task(tasks[task], first_page[span], 0, sinks, at, size, part, 1)
            for i in range(size):
                parts[rows[at + i], parts.shape[1] - 1] = part + i
            part += size
            task += 1
    return task, part


@inner
def _task(line, first_page, first_key, keys, first_row, count, first_part, sinks):
    line[FIRST_PAGE], line[FIRST_KEY], line[KEYS] = first_page, first_key, keys
    line[FIRST_ROW], line[ROW_COUNT], line[FIRST_PART], line[SINKS] = first_row, count, first_part, sinks


@inner
def _leader(pages, first_page, starts, offsets, span, r):
    """The first span whose range r lies in the same pages by every table, if it is past for both; else the span itself."""
    if (r + 1) * RANGE > offsets[span]:
        return span
    for other in range(span):
        if (r + 1) * RANGE > offsets[other] or starts[other] > r:
            continue
        its, own, same = first_page[other] + (r - starts[other]) * RANGE_PAGES, first_page[span] + (r - starts[span]) * RANGE_PAGES, True
        for table in range(pages.shape[0]):
            for p in range(RANGE_PAGES):
                if pages[table, its + p] != pages[table, own + p]:
                    same = False
                    break
            if not same:
                break
        if same:
            return other
    return span


def scratch_floats(head_dim: int) -> int:
    """Floats of scratch that `attend` needs."""
    padded = (head_dim + WIDTH - 1) // WIDTH * WIDTH
    return ROWS * (head_dim + RANGE + padded) + padded * WIDTH


@kernel
def attend_pages(
    worker, sync, pages, tasks, rows, parts, positions, trees, q, heads, dim, data, layer, kv_heads, slots, window, sinks, turns, scale, cap, partial,
    exponentials, received, out, scratch
):  # fmt: skip
    """One worker's share of out [T, H*D] = attention of q [T, H*D] over layer `layer` of the flat pool, both flat. See `attend`, `weigh`."""
    tokens, stride, group = positions.size, heads * (dim + 2), heads // kv_heads
    chunks = tasks.shape[0] * kv_heads
    weighed = chunks if received.size > 0 else 0
    while True:
        ticket = draw(sync)
        stage, chunk = stage_of(ticket), chunk_of(ticket)
        if stage == 0 and chunk < chunks:
            head = chunk % kv_heads
            row = row_size(data, dim)
            keys = (layer * 2 * kv_heads + head) * slots * row
            attend(
                tasks[chunk // kv_heads], pages, rows, positions, trees, q, heads * dim, head * group, group, data, keys,
                keys + kv_heads * slots * row, dim, window, sinks, turns, 0, scale, cap, partial, stride, exponentials, scratch,
            )  # fmt: skip
        elif stage == 1 and chunk < tokens:
            merge(parts, chunk, partial, stride, heads, dim, out, chunk * heads * dim)
        elif stage == 1 and chunk < tokens + weighed:
            pair = chunk - tokens
            weigh(tasks[pair // kv_heads], rows, parts, pair % kv_heads * group, group, dim, partial, stride, exponentials, received, pair * RANGE)
        elif stage > 1:
            return
        else:
            next_stage(sync, worker, stage, chunks + stage * (tokens + weighed))
            continue
        finish_chunk(sync)


@inner
def attend(
    task, pages, rows, positions, trees, q, q_stride, q_head, group, data, keys_at, values_at, dim, window, sinks, turns, turns_at, scale, cap, out,
    out_stride, exponentials, scratch
):  # fmt: skip
    """Partial results of one task for the `group` query heads from `q_head` on, which share a key head.

    q [T, q_stride], heads side by side. data: the flat pool; keys_at, values_at: where slot 0 of this layer and head begins.
    trees[t]: the key where the tree of guesses begins that t belongs to (-1: none), and bits of the nodes on its path, itself
    included; positions[t] is then that of the path.
    window 0: none; cap 0: none. sinks: how many first keys are seen beside the window; turns, from turns_at on [T, D]: cosines, then
    sines, of how many positions each token left out between the two.
    exponentials [parts, H, RANGE]: where not empty, those of the scores are kept there.
    out[part, :]: per head D sums of values, then the largest score, then the sum of exponentials.
    """
    first, keys, count, row = task[FIRST_KEY], task[KEYS], task[ROW_COUNT], row_size(data, dim)
    queries = count * group
    padded = (dim + WIDTH - 1) // WIDTH * WIDTH
    query = scratch[: queries * dim]
    scores = scratch[ROWS * dim : ROWS * (dim + RANGE)]
    sums = scratch[ROWS * (dim + RANGE) : ROWS * (dim + RANGE + padded)]
    panel = scratch[ROWS * (dim + RANGE + padded) :]
    earliest = keys
    for i in range(count):
        t = rows[task[FIRST_ROW] + i]
        earliest = min(earliest, _lowest(task, positions[t], window, sinks))
        scale_row(q, t * q_stride + q_head * dim, group * dim // LANES, scale, query, i * group * dim)
        if task[SINKS] > 0:
            for g in range(group):
                rotate_back(query, (i * group + g) * dim, turns, turns_at + t * dim, dim // 2)
        if in_whole_numbers(data):  # as the keys are
            for g in range(group):
                mix(query, (i * group + g) * dim, dim)
    for i in range(queries * padded):
        sums[i] = 0.0
    begin, stop = earliest // PAGE, (keys + PAGE - 1) // PAGE
    for p in range(begin, stop):
        slot = pages[task[FIRST_PAGE] + p] * PAGE
        transpose_page(data, keys_at + slot * row, row, dim // LANES, panel)
        for i in range(queries):
            for j in range(PAGE):
                scores[i * RANGE + p * PAGE + j] = 0.0
        multiply(panel, 0, WIDTH, query, 0, dim, dim, scores, p * PAGE, RANGE, queries)
    for i in range(count):
        t = rows[task[FIRST_ROW] + i]
        high = min(keys, positions[t] - first + 1)
        low = _lowest(task, positions[t], window, sinks)
        for g in range(group):
            at = (i * group + g) * RANGE
            place = (task[FIRST_PART] + i) * out_stride + (q_head + g) * (dim + 2) + dim
            branching = first <= trees[t, 0] < first + RANGE and task[SINKS] == 0
            if branching:
                _gather(scores, at + trees[t, 0] - first, trees[t, 1])
            _softmax(scores, at, begin * PAGE, stop * PAGE, low, high, cap, out, place)
            if branching:
                _spread(scores, at + trees[t, 0] - first, trees[t, 1], at + stop * PAGE)
            if exponentials.size > 0:
                kept = ((task[FIRST_PART] + i) * (out_stride // (dim + 2)) + q_head + g) * RANGE
                for j in range(keys):
                    exponentials[kept + j] = scores[at + j]
    for p in range(begin, stop):
        slot = pages[task[FIRST_PAGE] + p] * PAGE
        _add_values(data, values_at + slot * row, dim, padded, min(PAGE, keys - p * PAGE), scores, p * PAGE, sums, panel, queries)
    for i in range(queries):
        place = (task[FIRST_PART] + i // group) * out_stride + (q_head + i % group) * (dim + 2)
        scale_row(sums, i * padded, dim // LANES, np.float32(1.0), out, place)


@inner
def _lowest(task, position, window, sinks):
    """The first of the task's keys that a token at `position` sees."""
    if window == 0 or task[SINKS] > 0 or position < window + sinks:
        return 0
    return max(0, position - window + 1 - task[FIRST_KEY])


@inner
def _gather(scores, at, path):
    """Moves the scores of the nodes on a path together."""
    node = count = 0
    while path >> node:
        if path >> node & 1:
            scores[at + count] = scores[at + node]
            count += 1
        node += 1


@inner
def _spread(scores, at, path, end):
    """Moves them back to their nodes, with 0 for all others up to `end`."""
    nodes = count = 0
    while path >> nodes:
        count += path >> nodes & 1
        nodes += 1
    for i in range(at + nodes, end):
        scores[i] = 0.0
    for node in range(nodes - 1, -1, -1):
        if path >> node & 1:
            count -= 1
            scores[at + node] = scores[at + count]
        else:
            scores[at + node] = 0.0


@inner
def _softmax(scores, at, begin, stop, low, high, cap, out, place):
    """Scores at begin..stop become exponentials, 0 outside low..high; their maximum and sum go to out[place], out[place + 1]."""
    if high <= low:
        for j in range(begin, stop):
            scores[at + j] = 0.0
        out[place], out[place + 1] = -np.inf, 0.0
        return
    octets = (stop - begin) // LANES
    if cap > 0.0:
        cap_all(scores, at + begin, octets, cap)
    for j in range(begin, low):
        scores[at + j] = -np.inf
    for j in range(high, stop):
        scores[at + j] = -np.inf
    largest = largest_of(scores, at + begin, octets)
    out[place] = largest
    out[place + 1] = exponentials_of(scores, at + begin, octets, largest)


@inner
def _add_values(data, values_at, dim, padded, count, scores, scores_at, sums, panel, queries):
    """sums[i, 0:D] += probabilities of `count` keys times their values, a page of the pool read in place where it can be."""
    if data.itemsize == 4 and padded == dim:
        for d in range(0, dim, WIDTH):
            multiply(data, values_at + d, dim, scores, scores_at, RANGE, count, sums, d, padded, queries)
        return
    for j in range(count):
        for d in range(dim, padded):
            panel[j * padded + d] = 0.0
        widen_row(data, values_at + j * row_size(data, dim), dim // LANES, panel, j * padded)
    for d in range(0, padded, WIDTH):
        multiply(panel, d, padded, scores, scores_at, RANGE, count, sums, d, padded, queries)


@inner
def weigh(task, rows, parts, q_head, group, dim, partial, stride, exponentials, received, received_at):
    """received[0 : RANGE] += what the keys of a task receive from its tokens by the `group` query heads from q_head on."""
    for i in range(task[ROW_COUNT]):
        for head in range(q_head, q_head + group):
            token, at = rows[task[FIRST_ROW] + i], head * (dim + 2) + dim
            largest, total = np.float32(-np.inf), np.float32(0.0)
            for r in range(parts.shape[1]):
                if parts[token, r] >= 0:
                    largest = max(largest, partial[parts[token, r] * stride + at])
            for r in range(parts.shape[1]):
                if parts[token, r] >= 0:
                    place = parts[token, r] * stride + at
                    total += np.float32(math.exp(partial[place] - largest)) * partial[place + 1]
            part = task[FIRST_PART] + i
            factor = np.float32(math.exp(partial[part * stride + at] - largest)) / total
            kept = (part * (stride // (dim + 2)) + head) * RANGE
            for j in range(task[KEYS]):
                received[received_at + j] += exponentials[kept + j] * factor


@kernel
def add_up(pages, tasks, kv_heads, received, sums):
    """sums[slot] += what the keys of all tasks have received, received [tasks * kv_heads, RANGE]."""
    for task in range(tasks.shape[0]):
        for head in range(kv_heads):
            for j in range(tasks[task, KEYS]):
                slot = pages[tasks[task, FIRST_PAGE] + j // PAGE] * PAGE + j % PAGE
                sums[slot] += received[(task * kv_heads + head) * RANGE + j]


@inner
def merge(parts, token, partial, stride, heads, dim, out, out_at):
    """out[0 : heads*dim] = attention of a token over all ranges it has a partial result for."""
    for head in range(heads):
        at = head * (dim + 2)
        largest = np.float32(-np.inf)
        for r in range(parts.shape[1]):
            if parts[token, r] >= 0:
                largest = max(largest, partial[parts[token, r] * stride + at + dim])
        total = np.float32(0.0)
        for j in range(dim):
            out[out_at + head * dim + j] = 0.0
        for r in range(parts.shape[1]):
            if parts[token, r] >= 0:
                place = parts[token, r] * stride + at
                weight = np.float32(math.exp(partial[place + dim] - largest))
                total += weight * partial[place + dim + 1]
                add_row(partial, place, dim // LANES, weight, out, out_at + head * dim)
        scale_row(out, out_at + head * dim, dim // LANES, np.float32(1.0) / total, out, out_at + head * dim)
