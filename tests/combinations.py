"""What CI leaves to `make test-all`: further combinations of engines, layouts, models and moments.

CI runs `make test`, `make test-more` and `make test-tools`: each behaviour at least once, each value of each parameter at least once, but not
their products. Before a release, and after a change of an engine, a schedule or the cut, `make test-all` runs everything.
As in thorough.py a test is named with its file and function, and with the ids of the cases that CI keeps (`*` stands for
any text) beside those of `make test`. Without ids `make test-all` alone runs what `make test` leaves. Tests in containers
have a table of their own: CI runs `make compose-test-quick`, and `make compose-test` everything.
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
        "`make bench SIZE=quick` runs all checks of `make gpu-test` on the CPU.",
        {"repository/test_gpu_test_runs.py::test_the_harness_runs_jobs_measures_and_writes_its_page": ()},
    ),
    Later(
        "A kind of model and a layout are independent of each other: the cut is the model's, and what moves between ranks is the "
        "layout's. CI has each kind, and each layout in float64, up to four ranks in bf16. The other layouts of eight ranks differ "
        "from those of four in a number only.",
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
        "Dense families of language models differ in their layers and not in what moves between ranks. CI has the models with experts.",
        {
            f"{TRAIN}/jobs/test_folder_families.py::test_the_first_step_of_a_family_in_two_ranks_is_that_of_one_process": (
                "experts",
            ),
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
            f"{WHOLE}/test_note_scripts.py::test_ddp_over_the_backend_smddp": (),
        },
    ),
    Later(
        "Kinds of models x attentions x masks: how attention is computed, whom a mask leaves out and where a model is cut are "
        "independent of each other. `make test` has each of their values, CI each pair of attention and mask.",
        {
            f"{TRAIN}/parallel/test_masks.py::test_transformers_are_cut_at_every_layer_with_a_mask": (
                "bert-classes-eager-padded",
                "llama-sdpa-full",
            ),
            f"{TRAIN}/parallel/test_masks_on_ranks.py::"
            "test_a_pipeline_trains_and_evaluates_as_the_unsplit_model_whichever_microbatch_is_padded": (
                "bert-sdpa-2-zero-bubble-padded",
                "bert-tokens-sdpa-4-1f1b-full",
                "bert-eager-4-gpipe-padded-layers",
            ),
        },
    ),
    Later(
        "1,000 schedules of kills are the first 100 of `make test` and 900 that are drawn alike.",
        {
            f"{TRAIN}/data/test_order_sampler.py::"
            "test_random_schedules_of_kills_layouts_and_workers_train_on_each_sample_once": (),
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
            f"{WHOLE}/test_hang_calls.py::test_the_odd_rank_is_named_with_both_calls": ("subgroup",),
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
        "Engines x hosts x ranks of jobs that load torch. How an engine starts ranks is compared with torchrun in "
        "test_simulate.py; what ranks compute with each other is in compat and train, with as many ranks that are forked. `make "
        "test` has the backend smddp under mpirun, and under native in test_note_scripts.py; four ranks that hang in "
        "test_hang_calls.py, and ranks that may leave without torch in test_left.py.",
        {
            f"{COMPAT}/test_smddp.py::test_the_backend_smddp_reduces_gathers_and_carries_ddp": (),
            f"{COMPAT}/test_smp_launched.py::test_an_evaluation_on_rank_0_alone_ends_the_job_with_its_reason": (
                "native",
            ),
            f"{COMPAT}/test_smp_launched.py::test_a_manual_partition_trains_as_the_unsplit_model": ("2x1-mpirun",),
            f"{WHOLE}/test_hang.py::test_a_sleeping_rank_is_named_with_its_line_on_every_host": (
                "torchrun-1",
                "mpirun-1",
            ),
            f"{WHOLE}/test_left.py::test_ranks_that_end_on_their_own_are_fine": (),
            f"{WHOLE}/test_note_scripts.py::test_gradients_averaged_by_hand_with_a_rank_of_the_list_of_hosts": (
                "mpirun",
            ),
            "launcher/inside/test_should_stop.py::test_a_stop_of_a_simulation_is_saved_at_the_same_step_by_all": (
                "mpirun-torch-1",
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
        "Moments at which a client dies. CI has every sixth request of a processing job, every 16th one of an execution with "
        "other data, and a client that dies again and again; client/submit/place/test_send.py has each moment of a training job, with jobs "
        "in memory.",
        {
            "client/test_killed_client.py::test_a_client_killed_at_each_of_its_requests": ("processing-1",),
            "client/test_killed_client.py::"
            "test_a_client_killed_at_every_16th_request_of_an_execution_with_other_data": ("4",),
            "client/test_killed_client.py::test_a_client_killed_again_and_again": ("0",),
        },
    ),
)

IN_CONTAINERS = (
    Later(
        "Hosts x engines, programs x engines, layouts x hosts: what a container is to a host, an engine to ranks and a layout to "
        "a model are independent of each other. CI stops each host and stops under each engine; ddp has one loss under every "
        "engine, stages under native and torchrun, a sharded language model under native and mpirun, and under torchrun in "
        "`make sdk-test-quick`; layouts of eight ranks are in train/jobs/test_folder_layouts.py.",
        {
            "e2e/test_compose.py::test_docker_stop_on_one_host_ends_all_with_a_checkpoint": (
                "algo-1-torchrun",
                "algo-2-native",
                "algo-2-mpirun",
            ),
            "e2e/test_language_model.py::test_a_sharded_language_model_gives_the_loss_and_the_folder_of_native": (
                "mpirun",
            ),
            "e2e/test_pipeline.py::test_two_pipelines_of_two_stages_give_the_loss_of_native": ("torchrun",),
            "e2e/test_pipeline.py::test_four_stages_x_two_replicas_on_eight_ranks": (),
        },
    ),
)

TABLE = {test: ids for later in COMBINATIONS for test, ids in later.kept.items()}
CONTAINERS_TABLE = {test: ids for later in IN_CONTAINERS for test, ids in later.kept.items()}
