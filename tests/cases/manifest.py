"""Where each case of the bank is tested, or what it waits for. test_manifest.py keeps this complete and true.

Schema, text and mask cases are all tested from the bank itself: TABLES names the test of each mode. Statements of
behaviour are tested by hand: TESTED names tests, those of kind sdk carry a mark instead (tests/agent/cases/behaviour.py).
What needs a feature that does not exist yet stands in LATER.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.cases.bank import CASES, Statement

Feature = Literal["server"]
"""What a case waits for."""


@dataclass(frozen=True)
class Later:
    feature: Feature
    reason: str


TABLES: dict[str, str] = {
    "schema": "tests/cases/test_schema.py::test_case",
    "text": "tests/cases/test_grammar.py::test_case",
    "mask": "tests/cases/test_tokenization.py::test_masks",
}

MARKED = "tests/agent/cases"
"""Folder whose tests carry the statement that they test as a mark."""

NAMED = "tests/engine/cases"
"""Folder whose tests carry the id of their case as a parameter."""

_CASES = NAMED + "/test_"
_ENGINE = "tests/engine/test_engine.py::test_"
_HERE = "tests/cases/test_tokenization.py::test_"
_SCHEDULER = "tests/engine/test_scheduler.py::test_"
_DRAFTS = "tests/engine/speculation/test_speculator.py::test_"

TESTED: dict[Statement, tuple[str, ...]] = {
    ("eng-backend-latch", 0): (f"{_CASES}exec.py::test_each_request_is_served_on_its_own_merits",),
    ("eng-batch-invariance", 0): (
        f"{_CASES}batch.py::test_logits_are_equal_to_the_bit_beside_any_neighbours",
        f"{_CASES}batch.py::test_what_cannot_promise_it_refuses",
    ),
    ("eng-batch-invariance", 1): (
        f"{_SCHEDULER}neighbours_joining_and_leaving_do_not_change_a_greedy_output",
        "tests/engine/test_stress.py::test_a_few_dozen_requests",
    ),
    ("eng-cancel-frees-blocks", 0): (
        f"{_CASES}cancel.py::test_cancelling_stops_within_a_step_and_frees",
        f"{_CASES}cancel.py::test_cancelling_while_waiting_and_while_prefilling",
        f"{_ENGINE}leaving_a_stream_cancels",
        f"{_ENGINE}cancelling_a_task_cancels_the_request",
    ),
    ("eng-cancel-frees-blocks", 1): (
        f"{_CASES}cancel.py::test_cancelling_stops_within_a_step_and_frees",
        f"{_SCHEDULER}every_request_ends_once_and_nothing_leaks",
    ),
    ("eng-fp16-overflow", 0): (f"{_CASES}numeric.py::test_intermediates_beyond_half_precision_stay_finite",),
    ("eng-fp16-overflow", 1): (f"{_CASES}numeric.py::test_a_nan_row_fails_its_request_only",),
    ("eng-grammar-failure-ends-stream", 0): (
        f"{_CASES}error.py::test_the_client_hears_of_it_and_others_go_on",
        f"{_CASES}error.py::test_a_grammar_that_fails_before_the_first_token",
    ),
    ("eng-grammar-failure-ends-stream", 1): (f"{_CASES}error.py::test_the_client_hears_of_it_and_others_go_on",),
    ("eng-kv-quant-accuracy", 0): (f"{_CASES}numeric.py::test_one_large_channel_of_keys_costs_little",),
    ("eng-kv-quant-accuracy", 1): (f"{_CASES}numeric.py::test_greedy_texts_stay_the_same_in_eight_bits",),
    ("eng-kv-quant-accuracy", 2): (f"{_CASES}numeric.py::test_pages_in_eight_bits_serve_the_next_turn_as_well",),
    ("eng-left-padding", 0): (f"{_CASES}attention.py::test_rows_of_unequal_length_equal_their_lone_runs",),
    ("eng-left-padding", 1): (f"{_CASES}attention.py::test_the_mask_stays_in_force_at_every_step",),
    ("eng-mask-before-top-k", 0): (
        f"{_CASES}sampling.py::test_a_legal_token_below_the_top_is_found",
        f"{_CASES}sampling.py::test_the_whole_engine_produces_it",
    ),
    ("eng-mask-before-top-k", 1): (f"{_CASES}sampling.py::test_penalties_lift_nothing_and_make_no_nan",),
    ("eng-pool-accounting", 0): (f"{_CASES}memory.py::test_memory_adds_up_over_random_traffic",),
    ("eng-pool-accounting", 1): (f"{_CASES}memory.py::test_memory_adds_up_over_random_traffic",),
    ("eng-pool-accounting", 2): (f"{_CASES}memory.py::test_memory_adds_up_over_random_traffic",),
    ("eng-prefix-adapter-scale", 0): (
        f"{_CASES}prefix.py::test_scales_of_an_adapter_share_nothing",
        "tests/engine/adapters/test_engine_adapters.py::test_scale_zero_is_the_base_model_to_the_bit",
    ),
    ("eng-prefix-hash-collision", 0): (f"{_CASES}prefix.py::test_reuse_compares_token_ids",),
    ("eng-prefix-hash-collision", 1): (
        f"{_CASES}prefix.py::test_reuse_compares_token_ids",
        f"{_CASES}prefix.py::test_the_same_page_after_another_parent_is_another_page",
    ),
    ("eng-prefix-key-domains", 0): (f"{_CASES}prefix.py::test_no_hit_between_domains", f"{_CASES}prefix.py::test_salts_of_requests_are_kept_apart"),
    ("eng-prefix-key-domains", 1): (f"{_CASES}prefix.py::test_no_hit_between_domains",),
    ("eng-prefix-stale-hash-after-evict", 0): (f"{_CASES}prefix.py::test_evicted_contents_are_never_found_again",),
    ("eng-prefix-stale-hash-after-evict", 1): (f"{_CASES}prefix.py::test_evicted_contents_are_never_found_again",),
    ("eng-seed-per-request", 0): (
        f"{_CASES}sampling.py::test_a_seed_fixes_the_stream_whatever_runs_beside",
        f"{_CASES}sampling.py::test_a_seed_fixes_the_stream_through_preemption",
    ),
    ("eng-seed-per-request", 1): (
        f"{_CASES}sampling.py::test_a_seed_fixes_the_stream_whatever_runs_beside",
        f"{_SCHEDULER}global_random_state_is_left_alone",
    ),
    ("eng-preempt-stale-drafts", 0): (f"{_DRAFTS}many_requests_with_little_memory_come_out_the_same",),
    ("eng-preempt-stale-drafts", 1): (f"{_DRAFTS}many_requests_with_little_memory_come_out_the_same",),
    ("eng-spec-eos-in-draft", 0): (f"{_DRAFTS}an_end_token_inside_a_draft_ends_the_output_there",),
    ("eng-spec-equals-greedy", 0): (f"{_DRAFTS}outputs_and_events_are_those_of_plain_decoding",),
    ("eng-spec-equals-greedy", 1): (f"{_DRAFTS}outputs_and_events_are_those_of_plain_decoding",),
    ("eng-spec-grammar-masks", 0): (f"{_DRAFTS}under_a_grammar_too_with_its_forced_runs",),
    ("eng-spec-grammar-masks", 1): ("tests/engine/speculation/test_constrain.py::test_forbidden_guesses_cost_nothing",),
    **{("eng-spec-grammar-masks", number): (f"{_DRAFTS}under_a_grammar_too_with_its_forced_runs",) for number in (2, 3, 4)},
    ("eng-stop-string-across-tokens", 0): (
        f"{_CASES}stop.py::test_a_stop_inside_tokens_ends_the_text_before_it",
        f"{_CASES}stop.py::test_generation_ends_with_the_token_that_completed_the_stop",
        f"{_CASES}stop.py::test_characters_in_pieces_and_overlapping_starts",
    ),
    ("eng-stop-string-across-tokens", 1): (f"{_CASES}stop.py::test_held_text_is_released_when_it_cannot_match",),
    ("eng-stop-string-across-tokens", 2): (f"{_CASES}stop.py::test_include_stop",),
    ("eng-stop-string-across-tokens", 3): (
        f"{_CASES}stop.py::test_the_earliest_end_wins",
        f"{_CASES}stop.py::test_of_equal_ends_the_longest_stop_counts",
    ),
    ("eng-stop-not-in-reasoning", 0): (
        f"{_CASES}stop.py::test_a_stop_string_does_not_cut_the_reasoning",
        f"{_CASES}stop.py::test_reasoning_that_the_prompt_has_begun",
        f"{_CASES}stop.py::test_what_begins_reasoning_may_end_in_blanks_and_be_of_any_letters",
        f"{_CASES}stop.py::test_under_the_grammar_of_a_turn",
        f"{_CASES}stop.py::test_what_is_no_pair_of_texts_is_refused",
    ),
    ("eng-temperature-zero", 0): (f"{_CASES}sampling.py::test_ties_go_to_the_lowest_id",),
    ("eng-temperature-zero", 1): (f"{_CASES}sampling.py::test_neighbours_of_other_temperatures",),
    ("tok-byte-level-markers", 0): (f"{_HERE}the_space_is_read_from_the_decoder",),
    ("tok-byte-level-markers", 1): (f"{_HERE}an_added_line_break_is_its_byte",),
    ("tok-byte-level-markers", 2): (f"{_HERE}texts_with_marker_letters_come_back",),
    ("tok-ids-beyond-len", 0): (f"{_HERE}the_mask_covers_the_logits",),
    ("tok-ids-beyond-len", 1): (f"{_HERE}an_id_beyond_the_vocabulary_is_judged_by_its_text",),
    ("tok-jump-forward-equality", 0): (f"{_HERE}forcing_changes_no_text",),
    ("tok-jump-forward-equality", 1): (f"{_HERE}forced_tokens_end_inside_a_character_only_where_tokens_do",),
    ("tok-jump-forward-equality", 2): (f"{_HERE}usage_counts_the_tokens_in_the_context",),
    ("tok-real-fffd", 0): (f"{_CASES}detok.py::test_true_replacement_characters_keep_coming",),
    ("tok-real-fffd", 1): (f"{_CASES}detok.py::test_the_cost_per_token_stays_constant",),
    ("tok-split-invariance", 0): (f"{_CASES}eos.py::test_any_split_of_the_tokens_is_accepted_alike",),
    ("tok-split-invariance", 1): (f"{_CASES}eos.py::test_any_split_of_the_tokens_is_accepted_alike",),
    ("tok-tail-flush-at-end", 0): (f"{_CASES}detok.py::test_streamed_text_equals_the_text",),
    ("tok-tail-flush-at-end", 1): (
        f"{_CASES}detok.py::test_streamed_text_equals_the_text",
        f"{_CASES}detok.py::test_an_open_stop_string_is_released_at_every_other_end",
    ),
    ("tok-terminated-matcher", 0): (f"{_CASES}eos.py::test_tokens_after_the_end_leave_a_matcher_finished",),
    ("tok-terminated-matcher", 1): (f"{_CASES}eos.py::test_a_finished_request_gets_no_further_mask",),
    ("tok-truncated-by-limit", 0): (f"{_CASES}truncation.py::test_guard_on_completes_or_refuses_at_once",),
    ("tok-truncated-by-limit", 1): (
        f"{_CASES}truncation.py::test_guard_off_is_a_typed_error_or_partial_text",
        "tests/agent/test_loop.py::test_a_turn_cut_inside_a_call_is_an_error",
    ),
}
"""Statement -> the tests that show it: node ids up to their parameters."""


def _waiting(case_id: str, feature: Feature, reason: str) -> dict[Statement, Later]:
    """All statements of a case."""
    return {(case_id, number): Later(feature, reason) for number in range(len(CASES[case_id]["expect"]["behaviour"]))}


_HTTP = "the OpenAI-compatible server"

LATER: dict[Statement, Later] = {
    **_waiting("srv-bad-grammar-after-good", "server", _HTTP),
    **_waiting("srv-bad-regex", "server", f"{_HTTP}; that the error names the position is tested in tests/cases/test_server.py"),
    **_waiting("srv-compile-cancel", "server", f"{_HTTP}; cancelling a compilation is tested in tests/grammars/test_effort.py"),
    **_waiting("srv-deep-json", "server", f"{_HTTP}; schemas and patterns are tested in tests/cases/test_server.py"),
    **_waiting("srv-fail-open", "server", f"{_HTTP}; that the grammar is refused is tested in tests/cases/test_server.py"),
    **_waiting("srv-grammar-cache-bounded", "server", _HTTP),
    **_waiting("srv-many-tools", "server", f"{_HTTP}; names that begin alike are tested in tests/cases/test_server.py"),
    **_waiting("srv-negative-ints", "server", _HTTP),
    **_waiting("srv-no-parameters-tool", "server", f"{_HTTP}; the grammar is tested in tests/cases/test_server.py"),
    **_waiting("srv-recursive-grammar", "server", f"{_HTTP}; grammars in EBNF are tested in tests/grammars/cfg"),
    **_waiting("srv-required-without-call", "server", _HTTP),
    **_waiting("srv-schema-compile-time", "server", f"{_HTTP}; a time limit on compiling is tested in tests/grammars/test_effort.py"),
    **_waiting("srv-special-token-text", "server", f"{_HTTP}; the encoding of chats is tested in tests/engine/models/test_chat_template.py"),
    **_waiting("srv-stream-options", "server", _HTTP),
    **_waiting("srv-top-level-shapes", "server", _HTTP),
    **_waiting("srv-unbounded-n", "server", _HTTP),
}
"""Statements without a test so far -> what they wait for."""


def test_files() -> list[str]:
    """Files and folders that hold every test named here."""
    named = {node.split("::")[0] for nodes in TESTED.values() for node in nodes} | {node.split("::")[0] for node in TABLES.values()}
    return [MARKED, NAMED, *sorted(path for path in named if not path.startswith((MARKED + "/", NAMED + "/")))]
