"""Which test is which case that other backends got wrong: once in eager, once compiled.

The faults come from public reports about PyTorch on devices other than CUDA. Each row has the case,
its eager test in this directory, and its compiled one; a test here fails if one is gone. Cases of
distributed training are not among them, nor those that have no graph (``NO_GRAPH``).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
CASES, AROUND = "dynamo/test_regressions.py", "dynamo/test_regressions_around.py"
NO_GRAPH = "no graph"

# Case, eager test, compiled test: "file below tests::function".
VIEWS = [
    ("in-place through .data, and .data rebound, with an older view",
     "regressions/test_views.py::test_rebinding_data_leaves_older_views_alone",
     f"{AROUND}::test_data_and_older_views"),
    (".data of another length while a view lives",
     "regressions/test_views.py::test_data_of_another_length_while_a_view_lives",
     f"{AROUND}::rebind_data_of_another_length"),
    ("a view written after a synchronisation",
     "regressions/test_views.py::test_a_view_still_reaches_its_base_after_a_synchronisation",
     f"{AROUND}::test_a_view_that_a_graph_gave_still_reaches_its_base_after_a_synchronisation"),
    ("gradient after a slice of an intermediate was overwritten",
     "regressions/test_views.py::test_gradient_after_overwriting_a_slice_of_an_intermediate",
     f"{CASES}::overwritten_slice"),
    ("memory shared through DLPack", "neuron/test_dlpack.py::test_an_export_is_the_memory_itself",
     f"{CASES}::test_what_shares_memory_through_dlpack_sees_a_compiled_write"),
    ("copies between equally strided views",
     "regressions/test_views.py::test_copies_between_equally_strided_views_leave_the_gaps",
     f"{AROUND}::test_a_result_copied_into_a_strided_view_leaves_its_gaps"),
    ("a slice of a slice", "regressions/test_views.py::test_a_slice_of_a_slice",
     f"{CASES}::slice_of_a_slice_uses_its_own_shape"),
    ("a reduction over a slice of the last dimension",
     "regressions/test_views.py::test_reductions_over_a_slice_of_the_last_dimension",
     f"{CASES}::reduction_over_a_slice_of_the_last_dimension"),
    ("tensors of strided arrays", "regressions/test_views.py::test_tensors_of_strided_arrays",
     f"{AROUND}::test_strided_inputs_on_the_cpu_and_strided_arrays"),
    ("strided tensors moved to the device",
     "regressions/test_views.py::test_moving_strided_tensors",
     f"{AROUND}::test_strided_inputs_on_the_cpu_and_strided_arrays"),
    ("one element assigned", "regressions/test_views.py::test_assigning_one_element",
     f"{CASES}::elements_assigned_at_several_offsets"),
    ("initialisers that write through views",
     "regressions/test_views.py::test_elements_and_initialisers_of_views",
     f"{CASES}::initialised_and_assigned_elements"),
    ("parameters keep their identity when a module moves",
     "regressions/test_training.py::test_modules_move_with_their_optimizer",
     f"{AROUND}::test_an_optimizer_made_before_the_move_trains_the_compiled_module"),
]  # fmt: skip
INDEXING = [
    ("scatter of a transposed source",
     "regressions/test_indexing.py::test_scatter_of_a_transposed_source",
     f"{CASES}::scatter_of_a_transposed_source"),
    ("repeated indices that are summed",
     "regressions/test_indexing.py::test_combining_experts_with_repeated_indices",
     f"{CASES}::repeated_indices_are_summed"),
    ("masked_fill of a permuted tensor",
     "regressions/test_indexing.py::test_masked_fill_of_a_permuted_tensor",
     f"{CASES}::masked_fill_of_a_permuted_tensor"),
    ("top-k filter by comparison", "regressions/test_indexing.py::test_keeping_the_top_k",
     f"{CASES}::top_k_filter"),
    ("rows assigned by a mask", "regressions/test_indexing.py::test_assigning_rows_by_a_mask",
     f"{AROUND}::test_rows_assigned_by_a_mask_and_the_next_operator"),
    ("index_add of bools", "regressions/test_indexing.py::test_index_add_of_bools",
     f"{CASES}::index_add_of_booleans"),
    ("scatter with an empty index",
     "regressions/test_indexing.py::test_scatter_with_nothing_copies",
     f"{CASES}::scatter_with_an_empty_index_is_a_copy"),
    ("an index made from a shape", "regressions/test_indexing.py::test_indices_made_in_place",
     f"{CASES}::index_made_from_a_shape"),
    ("rows past what a narrow float counts",
     "regressions/test_indexing.py::test_gathering_far_rows_of_half_precision",
     f"{CASES}::indices_beyond_narrow_floats"),
    ("index_put_ on a view of a cache",
     "regressions/test_indexing.py::test_writing_a_cache_through_a_view",
     f"{CASES}::write_into_a_view_of_a_cache"),
    ("int64 views of odd widths", "regressions/test_indexing.py::test_views_of_odd_widths_of_int64",
     f"{CASES}::views_of_odd_widths"),
    ("a sort that feeds a cumsum", "regressions/test_indexing.py::test_nucleus_sampling",
     f"{CASES}::nucleus_sampling"),
    ("broadcast of a reduced value",
     "regressions/test_indexing.py::test_broadcasting_a_reduced_value",
     f"{CASES}::broadcast_of_a_reduced_value"),
    ("bad indices", "regressions/test_layers.py::test_bad_embedding_indices_are_refused",
     f"{AROUND}::test_bad_embedding_indices_are_refused"),
]  # fmt: skip
NUMBERS = [
    ("cumsum of bools", "regressions/test_dtypes.py::test_cumulative_sum_of_bools",
     f"{CASES}::cumulative_sum_of_booleans"),
    ("integer division beyond the floats",
     "regressions/test_dtypes.py::test_integer_division_beyond_the_floats",
     f"{CASES}::remainders_of_large_integers"),
    ("0-d bools", "regressions/test_dtypes.py::test_arithmetic_of_zero_dimensional_bools",
     f"{CASES}::arithmetic_of_booleans_without_dimensions"),
    ("dtypes of reductions", "regressions/test_dtypes.py::test_result_dtypes_of_reductions",
     f"{CASES}::results_of_integer_reductions"),
    ("promotion of three operands",
     "regressions/test_dtypes.py::test_promotion_of_operators_with_three_operands",
     f"{CASES}::promotion_of_three_operands"),
    ("numbers do not promote", "regressions/test_dtypes.py::test_numbers_do_not_promote_tensors",
     f"{CASES}::numbers_do_not_widen"),
    ("sort of many bools", "regressions/test_dtypes.py::test_sorting_many_bools",
     f"{CASES}::sort_of_many_booleans"),
    ("casts", "regressions/test_dtypes.py::test_every_cast", f"{CASES}::casts"),
    ("conjugate views", "regressions/test_dtypes.py::test_conjugate_views_are_not_forgotten",
     f"{CASES}::conjugates_and_transforms"),
    ("complex magnitudes, odd transforms",
     "regressions/test_dtypes.py::test_complex_magnitudes_and_odd_transforms",
     f"{CASES}::conjugates_and_transforms"),
    ("NaN in minima and maxima", "regressions/test_numbers.py::test_nan_wins_in_minima_and_maxima",
     f"{CASES}::nan_in_either_operand"),
    ("hypot of large numbers", "regressions/test_numbers.py::test_hypotenuse_does_not_overflow",
     f"{CASES}::hypotenuse_of_the_largest_number"),
    ("statistics of nothing", "regressions/test_numbers.py::test_statistics_of_nothing",
     f"{CASES}::statistics_of_nothing"),
    ("products with sizes of 0", "regressions/test_numbers.py::test_products_with_sizes_of_zero",
     f"{CASES}::products_without_elements"),
    ("ties of topk", "regressions/test_numbers.py::test_ties_of_topk_are_compared_by_value",
     f"{CASES}::ties_of_topk"),
    ("histogram edges", "regressions/test_numbers.py::test_histograms_drop_what_is_outside",
     f"{CASES}::histogram_drops_what_is_outside"),
    ("a large reduction, repeated",
     "regressions/test_numbers.py::test_a_large_reduction_repeats_to_the_bit",
     f"{AROUND}::test_a_large_reduction_repeats_to_the_bit"),
]  # fmt: skip
LAYERS = [
    ("convolution of a channel slice",
     "regressions/test_layers.py::test_convolution_of_a_channel_of_channels_last",
     f"{CASES}::convolution_of_a_channel_slice"),
    ("gradients of batch norm over strided inputs",
     "regressions/test_layers.py::test_batch_norm_gradients_of_strided_inputs",
     f"{CASES}::transposed_batch_norm"),
    ("transposed convolution, channels_last weight",
     "regressions/test_layers.py::test_transposed_convolution_with_a_channels_last_weight",
     f"{CASES}::transposed_convolution_with_a_channels_last_weight"),
    ("convolution after a permutation",
     "regressions/test_layers.py::test_convolution_after_permuting",
     f"{CASES}::convolution_after_a_permutation"),
    ("resizing to and from odd sizes", "regressions/test_layers.py::test_resizing_one_dimension",
     f"{CASES}::resizing_of_one_and_to_odd_sizes"),
    ("grid_sample in both memory formats",
     "regressions/test_layers.py::test_grid_sample_in_both_memory_formats_and_orders",
     f"{CASES}::grid_sample_in_both_memory_formats"),
    ("resizing, then convolving", "regressions/test_layers.py::test_resizing_then_convolving",
     f"{CASES}::resizing_then_convolving"),
    ("a graph of one width reused for another",
     "regressions/test_layers.py::test_one_operator_in_every_order_of_sizes_and_dtypes",
     f"{CASES}::test_a_graph_is_not_reused_for_another_width_dtype_or_number"),
    ("gradients of an LSTM",
     "regressions/test_sequences.py::test_lstm_gradients_with_random_initial_states",
     f"{CASES}::two_layer_lstm"),
    ("LSTM sizes and packed sequences",
     "regressions/test_sequences.py::test_lstm_sizes_and_packed_sequences",
     f"{AROUND}::test_lstm_of_packed_sequences"),
    ("rows that attend to nothing", "regressions/test_sequences.py::test_fully_masked_rows",
     f"{CASES}::rows_that_attend_to_nothing"),
    ("meaning of a bool mask",
     "regressions/test_sequences.py::test_a_bool_mask_means_what_the_additive_one_means",
     f"{CASES}::a_boolean_mask_is_its_additive_mask"),
    ("attention of one projection",
     "regressions/test_sequences.py::test_attention_block_at_every_precision",
     f"{CASES}::attention_block_of_one_projection"),
    ("a draw after fork_rng",
     "regressions/test_sequences.py::test_the_first_draw_after_a_fork_advances",
     f"{AROUND}::test_the_first_draw_after_a_fork_advances_the_state"),
    ("dropout recomputed",
     "regressions/test_sequences.py::test_recomputed_dropout_has_the_same_mask",
     "dynamo/test_models.py::test_checkpointing_draws_the_same_dropout_again"),
    ("masks of two steps",
     "regressions/test_sequences.py::test_masks_of_two_steps_differ_without_compiling_again",
     f"{CASES}::test_a_mask_differs_from_step_to_step_without_recompiling"),
]  # fmt: skip
TRAINING = [
    ("tied weights", "regressions/test_training.py::test_tied_weights_stay_tied",
     "dynamo/test_models.py::test_tied_weights_get_one_gradient"),
    ("a tied model saved and restored",
     "regressions/test_training.py::test_a_tied_model_is_the_same_after_a_round_trip",
     f"{CASES}::test_tied_weights_survive_saving_and_a_compiled_step_goes_on"),
    ("optimizers of transposed parameters",
     "regressions/test_training.py::test_optimizers_move_transposed_parameters",
     f"{CASES}::test_a_compiled_optimizer_moves_transposed_parameters"),
    ("autocast with a gradient scaler",
     "neuron/test_autocast.py::test_scaler_skips_overflows_and_grows",
     "dynamo/test_training.py::test_reduced_precision_step_with_a_grad_scaler"),
    ("reading the loss", "regressions/test_training.py::test_reading_the_loss_changes_nothing",
     f"{CASES}::test_reading_the_loss_changes_no_weight"),
    ("loading straight to the device",
     "regressions/test_training.py::test_loading_straight_to_the_device",
     f"{CASES}::test_a_loaded_tensor_and_one_from_dlpack_are_inputs"),
    ("a device in a checkpoint",
     "regressions/test_training.py::test_a_device_object_in_a_checkpoint",
     NO_GRAPH),
    ("location tags", "regressions/test_training.py::test_location_tags_keep_the_index", NO_GRAPH),
    ("untyped storages", "regressions/test_training.py::test_untyped_storages", NO_GRAPH),
    ("copies in every direction", "regressions/test_views.py::test_moving_strided_tensors",
     f"{AROUND}::test_copies_inside_a_graph_in_every_direction"),
]  # fmt: skip
SHAPES = [
    ("an unused input's shape", NO_GRAPH,
     f"{AROUND}::test_the_shape_of_an_unused_input_compiles_nothing"),
    ("sizes 0 and 1", NO_GRAPH, "dynamo/test_shapes.py::test_sizes_zero_and_one"),
    ("a size that varies", NO_GRAPH,
     "dynamo/test_shapes.py::test_two_hundred_lengths_are_captured_twice"),
    ("a number that changes", NO_GRAPH,
     f"{CASES}::test_a_changing_number_of_a_loop_is_named_in_the_ledger"),
    ("shapes that depend on data", NO_GRAPH,
     f"{CASES}::test_data_dependent_operators_break_the_graph_with_a_reason"),
]  # fmt: skip
TABLE = [*VIEWS, *INDEXING, *NUMBERS, *LAYERS, *TRAINING, *SHAPES]


def functions(path: Path) -> set[str]:
    """Names of a file's functions."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_case_has_its_tests() -> None:
    known: dict[str, set[str]] = {}
    for case, *tests in TABLE:
        for test in tests:
            if test != NO_GRAPH:
                file, _, name = test.partition("::")
                have = known.setdefault(file, functions(TESTS / file))
                assert name in have, f"{case}: {test} is gone"


@pytest.mark.parametrize("file", [CASES, AROUND])
def test_every_compiled_case_is_in_the_table(file: str) -> None:
    """A function that ``case`` registers, or a test, that no row names, needs a row."""
    named = {test.partition("::")[2] for _, *tests in TABLE for test in tests}
    tree = ast.parse((TESTS / file).read_text())
    found = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and (node.decorator_list or node.name.startswith("test_"))
    }
    further = {
        "view_sees_a_later_write_to_its_base",
        "channels_last_input_keeps_its_values",
        "test_compiled_as_cpu",  # runs the cases
        "test_gradients_as_cpu",  # likewise
    }
    assert found - named - further == set()
