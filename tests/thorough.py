"""What `make test` leaves to `make test-all`: which tests, why, and what stands for them in `make test`.

`make test` has at least one test of everything that the project does, in six minutes. A matrix keeps those of its cases
that differ in what they run; the others are marked `thorough` from the table below. Name a test with its file and
function, and the ids of the cases that `make test` keeps (`*` stands for any text). Without ids all of its cases wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Later:
    """Tests that wait for `make test-all`."""

    why: str
    kept: dict[str, tuple[str, ...]]  # "folder/file.py::function" below tests/ -> ids of the cases in `make test`


WHOLE, TRAIN, COMPAT = "launcher/whole", "train", "compat"

LATER = (
    Later(
        "Layouts on the strict device whose parts `make test` has in other jobs: four ranks, LoRA in shares, bf16 in stages, fp16.",
        {
            "strict_cuda/test_jobs.py::test_a_job_trains_as_cuda_and_waits_only_where_the_table_says": (
                "images",
                "images-bf16",
                "image-folder",
                "llama",
                "lora",
                "shard",
                "pipeline",
                "pipeline-shard",
                "smp-bf16",
            ),
        },
    ),
    Later(
        "Torch's 700 operators on the strict device: test_layers_give_the_cpu_s_numbers has the ones that torch chooses by the device.",
        {"strict_cuda/test_operators.py::test_torch_s_own_list_of_operators_gives_the_cpu_s_numbers": ()},
    ),
    Later(
        "Each launcher and library between a rank and its exception: launcher/control/test_child_errors.py and test_last_words.py have "
        "the decisions, launcher/inside/test_rank_report.py what each error says of its child. Those with torch take ten seconds.",
        {
            f"{WHOLE}/test_wrappers.py::test_the_first_line_says_what_failed_and_where": (
                "run.py",
                "other.py",
                "or.sh",
                "words.sh",
                "bar.py",
                "typed.py",
            ),
        },
    ),
    Later(
        "More draws of the same game with the numbers of processes.",
        {"launcher/host/test_reused_pids.py::test_strangers_with_the_numbers_of_ended_ranks_live": ("0",)},
    ),
    Later(
        "The options of all models of transformers: to import their configs takes a minute. The same file has many of them by name.",
        {"launcher/common/test_secret_names.py::test_no_option_of_a_model_and_of_training_is_a_secret": ()},
    ),
    Later(
        "What a stop finds below a rank is the same under every engine: launcher/control/test_stop_order.py has the order.",
        {
            f"{WHOLE}/test_stop_wrappers.py::test_a_stop_reaches_the_training_below_every_kind_of_wrapper": ("native",),
        },
    ),
    Later(
        "Tied weights in stages, and their checkpoints: `make test` has them in train/jobs/test_pipeline_folders.py and "
        "compat/test_smp_tied.py. The bundled vit in stages: there from files of images. The stop while torch is imported: "
        "under ddp. The shares of each host: by the checkpoint that four shares read. 1,000 schedules: 100 of them.",
        {
            f"{TRAIN}/jobs/test_pipeline_models.py::test_tied_embeddings_are_one_weight_in_checkpoints_of_any_layout": (),
            f"{TRAIN}/jobs/test_pipeline_models.py::test_images_go_through_a_vit": (),
            f"{TRAIN}/jobs/test_ddp.py::test_a_stop_while_torch_is_imported_is_not_lost": ("ddp-options0",),
            f"{TRAIN}/jobs/test_ddp_sharded.py::"
            "test_each_rank_of_the_first_replica_writes_its_share_on_its_own_host": (),
            f"{TRAIN}/data/test_order_sampler.py::"
            "test_random_schedules_of_kills_layouts_and_workers_train_on_each_sample_once": ("100",),
        },
    ),
    Later(
        "Each way that weights come into shares and stages, and a rank's memory meanwhile. `make test` trains from a folder's "
        "weights in train/jobs: shares and stages in test_folder_layouts.py, stages in test_pipeline_folders.py.",
        {
            f"{TRAIN}/models/test_folder_shares.py::test_shares_have_the_bits_of_one_process": (),
            f"{TRAIN}/models/test_folder_shares.py::test_loading_needs_a_share_and_one_tensor": (),
            f"{TRAIN}/models/test_folder_shares.py::test_a_process_without_shards_holds_the_weights_once": (),
            f"{TRAIN}/models/test_folder_stages.py::test_stages_have_the_bits_of_one_process": (),
            f"{TRAIN}/models/test_folder_stages.py::test_a_rank_needs_what_it_has_and_one_tensor": (),
        },
    ),
    Later(
        "Each kind of collective that does not fit: which calls differ is decided in launcher/control/test_calls.py; that a job "
        "that hangs is ended with the rank's line is in test_hang.py. The closing table is the launcher's own, whatever the engine.",
        {
            f"{WHOLE}/test_hang_calls.py::test_the_odd_rank_is_named_with_both_calls": (),
            f"{WHOLE}/test_times.py::test_other_engines_have_the_same_rows": (),
        },
    ),
    Later(
        "Jobs of ten seconds that run alone. Who is slow is decided in launcher/control/test_pace.py and "
        "launcher/timing/test_slowness.py; `make test` shows what is seen of DDP with real ranks, but not what is seen of FSDP and "
        "of stages, and no whole job.",
        {
            f"{WHOLE}/test_slow.py::test_a_slow_rank_is_named_with_its_host_and_what_it_spends_its_time_on": (),
            f"{WHOLE}/test_slow.py::test_in_an_even_job_nobody_is_slow": (),
            f"{WHOLE}/test_slow.py::test_a_job_too_short_for_a_warning_says_at_its_end_who_was_slow": (),
            "launcher/inside/test_rank_activities.py::test_the_wait_for_a_slower_rank_is_not_a_ranks_own_time": (
                "ddp",
            ),
            "launcher/inside/test_rank_activities.py::test_stages_of_torchs_pipelining_say_where_their_time_goes": (),
        },
    ),
    Later(
        "Every causal language model of transformers that can be made small: `make test` has nine of them, one of each kind of weights "
        "and of each kind of refusal.",
        {f"{TRAIN}/models/test_language_model_families.py::test_all_families": ()},
    ),
    Later(
        "A demo of what train/jobs/test_ddp_language_models.py shows; it makes a model, trains on four ranks and draws a page.",
        {f"{TRAIN}/jobs/test_demo_lm.py::test_the_demo_of_a_language_model_runs_from_text_to_text": ()},
    ),
    Later(
        "Two jobs of two ranks; that hosts with different images read the same is shown in threads.",
        {f"{TRAIN}/data/test_listing_on_hosts.py::test_a_job_on_two_hosts_trains_on_the_tar_files_of_both": ()},
    ),
    Later(
        "33 families of language models in two ranks: `make test` has one of them, and every family in one process.",
        {
            f"{TRAIN}/jobs/test_folder_families.py::test_the_first_step_of_a_family_in_two_ranks_is_that_of_one_process": ()
        },
    ),
    Later(
        "A model's cut and a layout are independent of each other. `make test` has the model with tied weights on two ranks: "
        "replicas, shares and stages; sharded stages are in train/jobs/test_pipeline_folders.py, other cuts in train/parallel.",
        {
            f"{TRAIN}/jobs/test_folder_layouts.py::test_a_layout_computes_the_loss_and_the_gradients_of_one_process": (
                "gpt2-2",
            ),
            f"{TRAIN}/jobs/test_folder_layouts.py::test_bf16_changes_gradients_and_not_much": ("gpt2",),
            f"{TRAIN}/jobs/test_pipeline_folders.py::test_stages_have_the_losses_of_ddp_which_goes_on_from_them": (
                "2",
            ),
        },
    ),
    Later(
        "Layouts of sharded data parallelism, each of which starts two or four ranks. `make test` has two shares, and a "
        "checkpoint that four shares read.",
        {
            f"{COMPAT}/test_smp_sharded.py::test_training_in_shares_equals_training_of_the_whole": ("2",),
            f"{COMPAT}/test_smp_sharded.py::test_a_script_s_own_clipping_is_by_the_norm_of_all_shares": (),
            f"{COMPAT}/test_smp_sharded.py::test_half_precision_has_master_weights": ("fp16",),
            f"{COMPAT}/test_smp_sharded.py::test_what_has_no_meaning_with_shares_is_refused": (),
            f"{COMPAT}/test_smp_sharded.py::test_a_checkpoint_goes_into_any_degree": ("2-4",),
        },
    ),
    Later(
        "Pairs of layouts, each of which starts four ranks. `make test` has one process that reads a sharded one's checkpoint; "
        "ddp reads that of stages in test_pipeline_folders.py; damaged shards are those of train/checkpoint.",
        {
            f"{TRAIN}/jobs/test_ddp_sharded.py::"
            "test_every_layout_trains_to_the_same_loss_and_writes_whole_tensors_by_name": (
                "alone",
                "shard4",
            ),
            f"{TRAIN}/jobs/test_ddp_sharded.py::test_a_torn_shard_of_a_stage_makes_ddp_take_the_older_checkpoint": (),
            f"{TRAIN}/jobs/test_ddp_sharded.py::test_a_layout_goes_on_from_another_s_checkpoint": ("shard2x2-alone",),
            f"{TRAIN}/jobs/test_ddp_sharded.py::test_a_checkpoint_of_version_0_1_0_is_read_into_shares": (),
            f"{TRAIN}/jobs/test_ddp_folders.py::"
            "test_ranks_that_resume_give_the_same_bits_and_the_channel_names_the_model": (),
            f"{TRAIN}/jobs/test_ddp_sharded.py::"
            "test_the_same_layout_resumes_bit_identical_and_a_torn_shard_is_passed_over": (),
            f"{TRAIN}/jobs/test_ddp_language_models.py::"
            "test_a_resumed_language_model_has_the_same_bits_and_reads_no_first_weights": ("1",),
        },
    ),
    Later(
        "Every image processor of transformers. `make test` has those of image classifiers, with any settings, in the code for "
        "PIL; the others are for other models, and torchvision's code is another process. Stages write with the code of ddp.",
        {
            f"{TRAIN}/models/test_image_processors.py::test_every_processor_gives_the_same_pixels_or_is_refused": (),
            f"{TRAIN}/jobs/test_artifact_processors.py::test_the_stages_of_a_pipeline_write_the_same_processor": (),
            f"{TRAIN}/models/test_image_processors.py::"
            "test_every_processor_for_torchvision_gives_the_same_pixels_or_is_refused": (),
            f"{TRAIN}/models/test_image_processors.py::test_a_classifiers_processor_is_taken_as_it_is_by_default": (
                "MobileViTImageProcessorPil",
                "EfficientNetImageProcessorPil",
                "ConvNextImageProcessorPil",
            ),
        },
    ),
    Later(
        "Trackers of memory, which make each operation slow. `make test` has the bytes of weights, gradients and moments in "
        "train/loop/test_sharded_steps.py.",
        {
            f"{TRAIN}/loop/test_sharded_memory.py::test_weights_gradients_and_moments_are_divided_by_the_shards": (),
            f"{TRAIN}/loop/test_sharded_memory.py::test_a_stage_has_its_share_of_weights_gradients_and_moments": (),
            f"{TRAIN}/loop/test_sharded_memory.py::test_the_peak_of_a_sharded_stage_is_that_of_the_formula": (),
            f"{TRAIN}/loop/test_sharded_memory.py::test_buffers_of_communication_have_the_size_of_one_unit": (),
            f"{TRAIN}/loop/test_sharded_memory.py::test_the_peak_is_that_of_the_formula": (),
        },
    ),
    Later(
        "Jobs with adapters. `make test` trains, and compares the gradients of a sharded one; kinds of models and "
        "layouts are those of the jobs without adapters.",
        {
            f"{TRAIN}/jobs/test_ddp_lora.py::test_two_ranks_compute_the_gradients_of_one_process": ("llama-2",),
            f"{TRAIN}/jobs/test_ddp_lora.py::test_a_resumed_job_has_the_same_bits": (),
            f"{TRAIN}/jobs/test_ddp_lora.py::test_adapters_train_and_peft_reads_them_on_the_folder": ("gpt2",),
        },
    ),
    Later(
        "An engine differs in how it starts, stops and ends ranks. Each of them has its failed rank, its lost host or its "
        "stop in `make test`; what the supervisor does the same under all of them is shown under one.",
        {
            f"{WHOLE}/test_faults.py::test_a_failing_rank_ends_all_hosts_with_one_root_cause": (
                "raise-native",
                "raise-torchrun",
                "SIGKILL-native",
                "destructor-native",
            ),
            f"{WHOLE}/test_faults.py::test_a_host_whose_supervisor_is_killed": (
                "algo-1-algo-2-native",
                "algo-2-algo-1-mpirun",
            ),
            f"{WHOLE}/test_faults.py::test_nothing_of_the_launcher_stays_in_the_temporary_folder": ("native", "mpirun"),
            f"{WHOLE}/test_restart.py::test_attempts_follow_each_other_until_one_succeeds": ("native", "mpirun"),
            f"{WHOLE}/test_simulate.py::test_a_collective_over_two_hosts": (),
            f"{WHOLE}/test_simulate.py::test_arguments_that_look_like_an_engine_s_own_reach_the_script": ("mpirun",),
            f"{WHOLE}/test_simulate.py::test_every_engine_gives_the_environment_that_torchrun_gives": (
                "native",
                "mpirun",
            ),
            f"{WHOLE}/test_simulated_gpus.py::test_simulated_hosts_share_no_gpu": ("native",),
            f"{WHOLE}/test_stops.py::test_a_stop_on_one_host_lets_every_rank_save": ("native", "mpirun"),
            f"{WHOLE}/test_hang.py::test_a_sleeping_rank_is_named_with_its_line_on_every_host": ("native-1",),
            f"{WHOLE}/test_note_scripts.py::test_gradients_averaged_by_hand_with_a_rank_of_the_list_of_hosts": (),
            "launcher/inside/test_should_stop.py::test_a_stop_of_a_simulation_is_saved_at_the_same_step_by_all": (
                "native-torch-1",
                "mpirun-mpi-2",
            ),
            "launcher/inside/test_rank_shim.py::test_a_terminating_newline_less_message_is_not_lost": ("native",),
            f"{COMPAT}/test_smddp.py::test_the_backend_smddp_reduces_gathers_and_carries_ddp": ("mpirun-*",),
            f"{COMPAT}/test_smp_launched.py::test_an_evaluation_on_rank_0_alone_ends_the_job_with_its_reason": (),
            f"{COMPAT}/test_smp_launched.py::test_a_manual_partition_trains_as_the_unsplit_model": ("2x1-native",),
        },
    ),
    Later(
        "Two attempts of a blocked engine. `make test` has one of them, and a stop in it.",
        {f"{WHOLE}/test_late_engine.py::test_another_attempt_does_not_wait_for_ranks_that_never_started": ()},
    ),
    Later(
        "Ranks that load torch in two attempts, and others that nobody disturbs. train/jobs/test_ddp_on_ranks.py resumes after a "
        "kill, and after a torn checkpoint, without a launcher; the other tests of test_restart.py have the launcher's attempts. What "
        "restarts cost is counted in launcher/timing/test_clock.py.",
        {
            f"{WHOLE}/test_restart.py::test_ddp_comes_out_bit_identical_after_a_killed_rank": (),
            f"{WHOLE}/test_restart.py::test_two_ranks_come_out_bit_identical_after_a_killed_one": (),
            f"{WHOLE}/test_times.py::test_two_restarts_are_counted_as_lost": (),
        },
    ),
    Later(
        "Four ranks load torch for one line of a message. The rules that choose it have all of their cases in "
        "launcher/control/test_hub_left.py; `make test` keeps a rank that leaves its peers in a collective, one that "
        "leaves before it meets them, and ranks that may leave, without torch.",
        {
            f"{WHOLE}/test_left.py::test_the_rank_that_left_is_named_on_every_host": ("collective-native",),
            f"{WHOLE}/test_left.py::test_another_attempt_may_follow": (),
            f"{WHOLE}/test_left.py::test_ranks_that_end_on_their_own_are_fine": (),
            f"{WHOLE}/test_left.py::test_all_ranks_that_ran_out_of_data_are_counted": (),
            f"{WHOLE}/test_note_scripts.py::test_ddp_over_the_backend_smddp": ("1",),
        },
    ),
    Later(
        "Ranks load torch for what another test has shown. In `make test` hosts with different slots say where their ranks "
        "are, and test_simulate.py has the collective; the stacks of DDP are those of test_hang.py, which has four ranks.",
        {
            f"{WHOLE}/test_gate.py::test_a_collective_of_hosts_with_different_slots": (),
            f"{WHOLE}/test_hang_of_ranks.py::test_the_rank_that_sleeps_outside_ddp_s_backward_is_named": (),
        },
    ),
    Later(
        "Ranks load torch to show that a neighbour's behaviour stays as it was: figures that are switched off, a machine's GPUs "
        "that a job without CUDA does not use, a process that a rank spawns, a second optimizer. Its neighbours in the same files "
        "are in `make test`.",
        {
            f"{WHOLE}/test_figures.py::test_figures_can_be_switched_off": (),
            f"{WHOLE}/test_simulated_gpus.py::test_the_bundled_ddp_trains_on_a_gpu_machine_whose_torch_has_no_cuda": (),
            "launcher/inside/test_rank_shim.py::test_multiprocessing_spawn_works_in_a_rank": (),
            "launcher/inside/test_rank_torch_steps.py::"
            "test_the_real_torch_several_optimizers_and_a_step_within_a_step": (),
            f"{WHOLE}/test_wrong_options.py::test_options_of_a_good_job_are_no_news": (),
            "launcher/inside/test_rank_activities.py::test_without_hooks_nothing_is_said": (),
        },
    ),
    Later(
        "They need chromium, which a newcomer's machine does not have. report/page has the policy, the escaping and the "
        "sampling without a browser; launcher/timing/trace_reader.py is as strict with traces as Perfetto.",
        {
            "report/test_browser.py::test_a_log_line_is_text_and_the_page_asks_for_nothing": (),
            "report/test_browser.py::test_the_policy_stops_a_script_and_a_request_that_got_into_the_page": (),
            "report/test_browser.py::test_16_hosts_with_10_000_values_a_metric_are_drawn_from_less_than_5_mb": (),
            "report/test_browser.py::test_nothing_is_wider_than_the_window": (),
            "report/test_browser.py::test_colours_follow_the_system_also_while_the_page_is_open": (),
            "report/test_perfetto.py::test_perfetto_takes_every_slice_of_a_trace": (),
        },
    ),
    Later(
        "The same code with another value or at another moment: another wrong option of the same check, another order of the "
        "same list, another byte of the same stranger.",
        {
            f"{WHOLE}/test_hosts_order.py::test_files_that_list_different_orders_are_told_at_once": (
                "12,21-address",
                "123,213,312-token",
            ),
            f"{WHOLE}/test_gate_strangers.py::test_another_program_where_the_hub_should_be_is_named": (
                "silent",
                "line",
            ),
            f"{WHOLE}/test_wrong_options.py::test_no_rank_starts_and_the_job_says_it_once": (
                "ddp",
                "ddp, no file",
                "pipeline, AWS's",
                "mpi-basics",
            ),
            f"{WHOLE}/test_cli.py::test_help_of_a_bundled_entrypoint_is_only_that": ("ddp",),
            f"{WHOLE}/test_stops.py::test_a_stop_while_the_hosts_start_reaches_all_of_them": ("0.01", "0.1"),
            f"{WHOLE}/test_requirements.py::test_a_package_is_installed_and_run_as_a_module": ("pyproject.toml",),
            f"{WHOLE}/test_job_environment.py::test_ranks_see_the_requirements_and_the_user_s_environment_stays_as_it_is": (
                "native",
            ),
            f"{WHOLE}/test_job_environment.py::test_an_environment_without_pip_gets_python_s_own": (),
            f"{WHOLE}/test_job_environment.py::test_a_link_to_the_code_is_bound_to_its_folder": (),
        },
    ),
    Later(
        "Waits for a documented time to pass. launcher/control/test_gate.py and test_rivals.py have the rules with a clock "
        "of their own.",
        {
            f"{WHOLE}/test_hosts_order.py::test_a_late_follower_of_a_leader_that_does_not_judge_hears_of_it_too": (),
        },
    ),
    Later(
        "Other versions of Open MPI and other layouts. `make test-tools` runs the whole file, in CI as well. A stop under this "
        "environment's mpirun is in launcher/inside/test_should_stop.py.",
        {
            f"{WHOLE}/test_openmpi.py::test_ranks_load_the_library_of_their_mpirun": ("5-layout1", "4.1-layout1"),
            f"{WHOLE}/test_openmpi.py::test_a_failed_rank_is_the_root_cause_on_every_host": ("5-raise*",),
            f"{WHOLE}/test_openmpi.py::test_a_rank_that_leaves_without_finalize_is_named": ("5-1x2-1",),
            f"{WHOLE}/test_openmpi.py::test_ranks_that_have_called_finalize_may_leave_one_after_the_other": (),
            f"{WHOLE}/test_openmpi.py::test_a_restart_runs_the_job_again": (),
            f"{WHOLE}/test_openmpi.py::test_a_stop_is_saved_at_the_same_step_by_all": (),
        },
    ),
    Later(
        "Starts agents or ranks that load torch each by itself for what other tests show by two: test_simulate.py that "
        "ranks get what bare torchrun gives them, and test_ddp_on_ranks.py that ddp trains with just that; "
        "test_note_scripts.py that a job has one rank on each host unless it asks for more.",
        {
            f"{TRAIN}/jobs/test_ddp_on_ranks.py::test_torchrun_starts_it": (),
            f"{WHOLE}/test_note_scripts.py::test_data_parallel_runs_once_per_host": (),
        },
    ),
    Later(
        "A script's own resume: `make typed-lines` runs it as the page says, and train/jobs resumes ddp bit by bit.",
        {f"{WHOLE}/test_first_job.py::test_a_stopped_run_goes_on_and_ends_with_the_weights_of_one_that_was_not": ()},
    ),
    Later(
        "All checks of `make gpu-test` on the CPU. `make bench SIZE=quick` runs them as well, in CI.",
        {"repository/test_gpu_test_runs.py::test_the_harness_runs_jobs_measures_and_writes_its_page": ()},
    ),
    Later(
        "Models x layouts x schedules, each equal to the unsplit model. `make test` keeps each schedule, each kind of "
        "model and each kind of layout at least once, but not all of their combinations.",
        {
            **dict.fromkeys(
                (
                    f"{TRAIN}/parallel/test_exactness.py::{name}"
                    for name in (
                        "test_training_and_evaluation_equal_those_of_the_unsplit_model",
                        "test_every_rank_computes_in_the_order_of_the_schedule",
                    )
                ),
                (
                    "model=hand * dp=2 pp=2 * placement=spread*",
                    "model=tied gpt * dp=1 pp=2 *",
                    "model=thrice schedule=zbv dp=1 pp=4 *",
                    "model=gpt schedule=1f1b dp=1 pp=4 *",
                    "model=in place schedule=zero-bubble *",
                    "model=squares schedule=dualpipev *",
                    "model=convnet schedule=interleaved *",
                ),
            ),
            f"{TRAIN}/parallel/test_exactness.py::test_copies_of_a_weight_stay_equal_to_the_last_bit": (
                "model=tied gpt * dp=1 pp=2 *",
                "model=thrice schedule=zbv dp=1 pp=4 *",
            ),
            f"{TRAIN}/parallel/test_exactness.py::test_weights_on_several_ranks_cost_one_collective_a_step": (
                "model=tied gpt * dp=1 pp=2 *",
                "model=thrice schedule=zbv dp=1 pp=4 *",
            ),
            f"{TRAIN}/parallel/test_exactness.py::test_bf16_is_close_to_the_unsplit_model_in_bf16": (
                "model=tied gpt *",
                "model=convnet schedule=interleaved *",
            ),
            f"{TRAIN}/parallel/test_masks.py::test_transformers_are_cut_at_every_layer_with_a_mask": (
                "bert-classes-sdpa-padded",
                "llama-eager-full",
            ),
            f"{TRAIN}/parallel/test_masks.py::test_what_is_read_crosses_and_is_read_anew": (
                "*-torch.bool",
                "*-padded-torch.int64",
            ),
            f"{TRAIN}/parallel/test_masks_on_ranks.py::"
            "test_a_pipeline_trains_and_evaluates_as_the_unsplit_model_whichever_microbatch_is_padded": (
                "gpt2-eager-2-1f1b-padded",
                "llama-sdpa-2-interleaved-padded-layers",
            ),
            f"{TRAIN}/parallel/test_schedules.py::test_the_orders_are_what_torch_executes": (
                "1f1b",
                "interleaved",
                "zbv",
            ),
            f"{COMPAT}/test_smp_masks.py::test_models_that_look_at_their_masks_train_as_the_unsplit_model": (
                "own-later-2",
                "gpt2-later-2",
                "bert-tokens-first-2",
            ),
            f"{COMPAT}/test_smp_tied.py::test_a_tied_head_trains_as_in_the_unsplit_model": (
                "2",
                "2-adds-up",
                "2-llama",
                "2x2-spread-every-2",
            ),
            f"{COMPAT}/test_smp_tied.py::test_a_checkpoint_goes_into_any_layout": (),
            f"{COMPAT}/test_smp_forms.py::"
            "test_any_form_of_the_arguments_trains_and_evaluates_as_the_model_without_the_library": (
                "2-2-words0",
                "4-2-words3",
            ),
            f"{COMPAT}/test_smp_forms.py::test_more_forms_than_are_kept_are_cut_anew": (),
            f"{COMPAT}/test_smp_autocast.py::test_training_and_evaluation_compute_under_their_own_autocast": (
                "bfloat16-float32-words0",
                "float32-bfloat16-words4",
                "float32-bfloat16-words6",
            ),
            f"{COMPAT}/test_smp_steps.py::test_steps_are_those_of_the_unsplit_model": (
                "2",
                "2-manual",
                "2-checkpointing",
                "4",
                "2x2-spread-simple",
                "2x2-every-2",
            ),
            f"{COMPAT}/test_smp_replicas.py::test_replicas_may_have_different_numbers_of_batches": (
                "2-1-left",
                "4-2-join",
            ),
            f"{COMPAT}/test_smp_checkpoints.py::"
            "test_training_goes_on_from_a_checkpoint_in_the_same_layout_and_in_others": ("parts",),
            f"{COMPAT}/test_smp_transformers.py::"
            "test_gpt2_with_its_tied_head_trains_on_padded_batches_of_any_length": (),
        },
    ),
    Later(
        "The commands of the client are shown on this machine. Through boto3 `make test` keeps one whole way, the lines over "
        "60 streams and the faults of the service; requests, failures and stops through boto3: tests/client/test_server.py.",
        {
            "client/test_round_trip.py::test_a_job_runs_and_comes_home_from_an_empty_folder": ("server",),
            "client/test_round_trip.py::test_a_failure_on_host_2_ends_with_its_code_and_the_logs_of_all_hosts": (
                "local",
            ),
            "client/test_round_trip.py::test_a_detached_job_is_joined_stopped_and_its_checkpoint_fetched": ("local",),
            "client/test_round_trip.py::test_a_job_that_does_not_exist_says_where_it_was_looked_for": ("local",),
            "client/test_chains.py::test_a_chain_from_a_failed_task_to_its_best_model": ("local",),
            "client/test_remembered.py::test_a_task_is_sent_once_and_its_state_lives_on": ("local",),
        },
    ),
    Later(
        "Every request at which a client may be killed, for both kinds of jobs, and again and again. `make test` kills one "
        "client while it uploads, before it creates its job, and right after that.",
        {
            f"client/{name}": ()
            for name in (
                "test_killed_client.py::test_a_client_killed_at_each_of_its_requests",
                "test_killed_client.py::test_a_client_killed_at_every_16th_request_of_an_execution_with_other_data",
                "test_killed_client.py::test_a_client_killed_again_and_again",
                "test_round_trip.py::test_a_client_that_is_killed_again_and_again_makes_one_job",
            )
        },
    ),
    Later(
        "Chains and sweeps with real jobs and real clients, which are killed, meet a quota, or are two of one line. `make "
        "test` does the same with jobs in memory: client/submit/chain/test_chain_run.py.",
        {
            f"client/test_chains.py::{name}": ()
            for name in (
                "test_a_sweep_above_the_quota_waits_and_a_killed_client_goes_on",
                "test_parallel_limits_the_jobs_of_a_sweep",
                "test_two_clients_of_one_line_make_each_job_once",
                "test_a_chain_whose_client_is_killed_again_and_again_makes_each_job_once",
            )
        },
    ),
    Later(
        "Waits of seconds for a rank that never comes. `make test` has those of steps: a rank that evaluates alone is an error.",
        {
            f"{COMPAT}/test_smp_comm.py::test_a_wait_for_a_rank_that_sends_nothing_ends": (),
            f"{COMPAT}/test_smp_forms.py::"
            "test_ranks_wait_for_the_search_for_another_form_longer_than_for_a_collective": (),
        },
    ),
    Later(
        "Every line of the pages that submits, in both places. `make test` keeps one of them.",
        {
            "client/test_documented_lines.py::test_a_line_of_the_pages_gives_the_same_in_both_places": (
                "--in train=s3://my-bucket/images train.py",
            ),
            "client/test_documented_lines.py::test_the_job_file_of_the_page_gives_the_same_in_both_places": (),
            "client/test_documented_lines.py::test_ends_and_codes_are_the_same_in_both_places": (),
            "client/test_simple_sagemaker_lines.py::test_the_line_of_the_article_trains_and_resumes_in_both_places": (),
            "client/test_simple_sagemaker_lines.py::test_other_lines_of_its_examples": (),
        },
    ),
    Later(
        "Waits for a minute of throttling, or runs what another test has shown: late lines without a restart and the end by "
        "an expired token are in client/test_round_trip.py, secrets of this machine in the kept case.",
        {
            "client/test_hostile_service.py::test_a_minute_of_throttling": (),
            "client/test_hostile_service.py::"
            "test_lines_of_hosts_that_restart_over_60_streams_followed_from_elsewhere": (),
            "client/test_hostile_service.py::test_the_line_that_an_expired_token_leaves_works": (),
            "client/test_hostile_service.py::test_an_argument_of_3000_characters_arrives_whole": (),
            "client/test_secrets_stay.py::test_no_secret_is_written_printed_or_listed": ("local",),
        },
    ),
)

Table = Mapping[str, tuple[str, ...]]
TABLE = {test: ids for later in LATER for test, ids in later.kept.items()}


def like(name: str, pattern: str) -> bool:
    """Whether `*` in the pattern may stand for something that makes it the name."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def key(item: pytest.Item) -> str:
    """ "launcher/whole/test_cli.py::test_x": what the table calls a test."""
    return item.nodeid.partition("[")[0].removeprefix("tests/")


def waits(item: pytest.Item, table: Table) -> bool:
    """Whether a table leaves this test to later."""
    ids = table.get(key(item))
    if ids is None:
        return False
    case = item.callspec.id if hasattr(item, "callspec") else ""
    return not any(like(case, pattern) for pattern in ids)


def stale(items: Iterable[pytest.Item], table: Table) -> list[str]:
    """What the table keeps of tests of which some were collected, and which none of them is."""
    cases: dict[str, list[str]] = {}
    for item in items:
        cases.setdefault(key(item), []).append(item.callspec.id if hasattr(item, "callspec") else "")
    return [
        f"{test}[{pattern}]"
        for test, ids in table.items()
        if test in cases
        for pattern in ids
        if not any(like(case, pattern) for case in cases[test])
    ]
