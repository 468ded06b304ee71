"""Which test files begin first: the longest, so that none of them ends alone."""

from __future__ import annotations

from tests.thorough import COMPAT, TRAIN, WHOLE

# The longest first: each takes about eight seconds or more of `make test` on two cores. Those that mostly wait are among
# those that compute.
SLOWEST = (
    f"{TRAIN}/parallel/test_exactness.py",
    f"{TRAIN}/jobs/test_folder_layouts.py",
    "strict_cuda/test_jobs.py",
    f"{WHOLE}/test_restart.py",
    f"{WHOLE}/test_gate.py",
    f"{TRAIN}/jobs/test_ddp_on_ranks.py",
    f"{WHOLE}/test_hang.py",
    f"{TRAIN}/jobs/test_pipeline_models.py",
    "client/test_round_trip.py",
    f"{TRAIN}/jobs/test_pipeline.py",
    f"{WHOLE}/test_wrong_options.py",
    f"{COMPAT}/test_smddp.py",
    f"{WHOLE}/test_cli.py",
    f"{WHOLE}/test_note_scripts.py",
    f"{TRAIN}/jobs/test_ddp.py",
    f"{WHOLE}/test_simulate.py",
    f"{TRAIN}/jobs/test_pipeline_partition.py",
    f"{COMPAT}/test_smp_tied.py",
    f"{WHOLE}/test_failure_file.py",
    f"{WHOLE}/test_openmpi.py",
    f"{WHOLE}/test_left.py",
    f"{COMPAT}/test_smp_steps.py",
    "launcher/inside/test_rank_shim.py",
    "launcher/inside/test_should_stop.py",
    f"{WHOLE}/test_faults.py",
    f"{TRAIN}/parallel/test_masks.py",
    f"{WHOLE}/test_client_requests.py",
    f"{COMPAT}/test_smp_checkpoints.py",
    f"{WHOLE}/test_stops.py",
    f"{WHOLE}/test_gate_strangers.py",
    "client/test_server.py",
    "contract/test_oracle.py",
    f"{TRAIN}/parallel/test_cut.py",
)


def turn(test: str) -> int:
    """When the file of a test has its turn: a smaller number is earlier."""
    file = test.partition("::")[0]
    return SLOWEST.index(file) if file in SLOWEST else len(SLOWEST)
