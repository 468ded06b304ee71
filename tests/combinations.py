"""What CI leaves to `make test-all`: further combinations of engines, layouts, models and moments.

CI runs `make test`, `make test-more` and `make test-tools`: each behaviour at least once, each value of each parameter at least once, but not
their products. Before a release, and after a change of an engine, a schedule or the cut, `make test-all` runs everything.
As in thorough.py a test is named with its file and function, and with the ids of the cases that CI keeps (`*` stands for
any text) beside those of `make test`. Without ids `make test-all` alone runs what `make test` leaves.
"""

from __future__ import annotations

from tests.thorough import COMPAT, TRAIN, WHOLE, Later

COMBINATIONS = (
    Later(
        "`make test-tools` runs all of this file, with both versions of Open MPI.",
        {
            f"{WHOLE}/test_openmpi.py::{name}": ()
            for name in (
                "test_ranks_load_the_library_of_their_mpirun",
                "test_a_failed_rank_is_the_root_cause_on_every_host",
                "test_a_restart_runs_the_job_again",
                "test_a_stop_is_saved_at_the_same_step_by_all",
            )
        },
    ),
    Later(
        "`make bench-quick` runs all checks of `make gpu-test` on the CPU.",
        {"repository/test_gpu_test_runs.py::test_the_harness_runs_jobs_measures_and_writes_its_page": ()},
    ),
    Later(
        "A kind of model and a layout are independent of each other: the cut is the model's, and what moves between ranks is the "
        "layout's. CI has each kind and each layout.",
        {
            f"{TRAIN}/jobs/test_folder_layouts.py::test_a_layout_computes_the_loss_and_the_gradients_of_one_process": (
                "qwen2-2",
                "gpt2-4",
                "vit-4",
                "llama-8",
            ),
            f"{TRAIN}/jobs/test_ddp_lora.py::test_two_ranks_compute_the_gradients_of_one_process": ("vit-2",),
            f"{TRAIN}/jobs/test_ddp_lora.py::test_a_resumed_job_has_the_same_bits": ("2",),
        },
    ),
    Later(
        "42 pairs of layouts: how a checkpoint was written and how it is read are independent of each other. In CI each layout "
        "writes a checkpoint that another one reads, and reads one that another one wrote.",
        {
            f"{TRAIN}/jobs/test_ddp_sharded.py::test_a_layout_goes_on_from_another_s_checkpoint": (
                "alone-pp4",
                "pp4-pp2xshard2",
                "pp2xshard2-dp4",
                "shard4-pp2xdp2",
                "pp2xdp2-shard2x2",
            ),
        },
    ),
    Later(
        "Models in every schedule. CI has all schedules in all layouts of a model that is cut by hand, and those of two kinds of "
        "models that are cut automatically, one of them with tied weights; the others have one or two in `make test`.",
        {
            f"{TRAIN}/parallel/test_exactness.py::{name}": kept
            for name, kept in (
                *(
                    (test, ("model=hand *", "model=gpt *", "model=tied gpt *", "model=convnet *"))
                    for test in (
                        "test_training_and_evaluation_equal_those_of_the_unsplit_model",
                        "test_every_rank_computes_in_the_order_of_the_schedule",
                    )
                ),
                (
                    "test_copies_of_a_weight_stay_equal_to_the_last_bit",
                    ("model=gpt *", "model=tied gpt *", "model=convnet *"),
                ),
                ("test_weights_on_several_ranks_cost_one_collective_a_step", ("model=tied gpt *",)),
            )
        },
    ),
    Later(
        "The same scripts in further layouts: replicas, stages and what is in the model are independent of each other.",
        {
            f"{COMPAT}/test_smp_steps.py::test_steps_are_those_of_the_unsplit_model": (
                "1",
                "1-ddp",
                "1-checkpointing",
                "2-one-microbatch",
                "2-evaluated-first",
                "2-sum",
            ),
            f"{COMPAT}/test_smp_tied.py::test_a_tied_head_trains_as_in_the_unsplit_model": (
                "2-every-2",
                "2-by-hand",
                "2-bert",
                "4",
                "4-local-clip",
            ),
            f"{COMPAT}/test_smp_sharded.py::test_a_checkpoint_goes_into_any_degree": (
                "whole-2",
                "pipeline-2",
                "full-4",
            ),
            f"{COMPAT}/test_smp_autocast.py::test_training_and_evaluation_compute_under_their_own_autocast": (
                "bfloat16-bfloat16-words2",
                "bfloat16-float32-words5",
            ),
            f"{COMPAT}/test_smddp.py::test_the_backend_smddp_reduces_gathers_and_carries_ddp": ("native-2-*",),
            f"{WHOLE}/test_note_scripts.py::test_ddp_over_the_backend_smddp": (),
        },
    ),
    Later(
        "Masks of further types: bool, int64 and float32 are in CI.",
        {
            f"{TRAIN}/parallel/test_masks.py::test_what_is_read_crosses_and_is_read_anew": (
                "*-full-torch.int64",
                "*-torch.float32",
            )
        },
    ),
    Later(
        "Engines x ways to end. What the supervisor does is the same under all engines: CI has each way under one of them and each "
        "engine with several ways, mpirun in `make test-tools`. ddp after a killed rank runs on two ranks.",
        {
            f"{WHOLE}/test_restart.py::test_ddp_comes_out_bit_identical_after_a_killed_rank": (),
            f"{WHOLE}/test_left.py::test_the_rank_that_left_is_named_on_every_host": (
                "return-torchrun",
                "quiet-mpirun",
                "early-native",
            ),
            f"{WHOLE}/test_left.py::test_ranks_that_end_on_their_own_are_fine": ("torchrun",),
            f"{WHOLE}/test_hang_calls.py::test_the_odd_rank_is_named_with_both_calls": ("missing", "subgroup"),
            f"{WHOLE}/test_faults.py::test_a_failing_rank_ends_all_hosts_with_one_root_cause": (
                "raise-mpirun",
                "exit7-mpirun",
                "SIGKILL-mpirun",
                "SIGSEGV-torchrun",
                "abort-native",
                "destructor-torchrun",
            ),
            f"{WHOLE}/test_faults.py::test_a_host_whose_supervisor_is_killed": (
                "algo-1-algo-2-torchrun",
                "algo-2-algo-1-native",
            ),
        },
    ),
    Later(
        "Two ranks that load torch each by itself: test_hang.py has the stacks of four, test_simulate.py one rank on each host.",
        {
            f"{WHOLE}/test_hang_of_ranks.py::test_the_rank_that_sleeps_outside_ddp_s_backward_is_named": (),
            f"{WHOLE}/test_note_scripts.py::test_data_parallel_runs_once_per_host": (),
        },
    ),
    Later(
        "Moments at which a client dies. CI has every third request of a processing job, every eighth one of an execution with "
        "other data, and a client that dies again and again; client/send/test_send.py has each moment of a training job, with jobs "
        "in memory.",
        {
            "client/test_killed_client.py::test_a_client_killed_at_each_of_its_requests": ("processing",),
            "client/test_killed_client.py::"
            "test_a_client_killed_at_every_eighth_request_of_an_execution_with_other_data": ("4",),
            "client/test_killed_client.py::test_a_client_killed_again_and_again": ("0",),
        },
    ),
)

TABLE = {test: ids for later in COMBINATIONS for test, ids in later.kept.items()}
