"""Which tests need torch, or what else only training has. A plugin of `make test PART=light`, which runs all others where torch is not installed.

A test that needs torch and has no row here fails there. tests/repository/test_without_torch.py sees to the rest: each
folder of tests has its place here, and each row names something that exists.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import like

TESTS = Path(__file__).parent
FOLDERS = ("client", "fuzz", "image", "launcher", "report", "repository")
LEFT_OUT: Mapping[str, str] = {
    "chaos": "hosts in namespaces, which train",
    "compat": "libraries on top of torch",
    "contract": "needs AWS's toolkit: make test PART=tools",
    "e2e": "containers of the image",
    "frameworks": "environments of their own",
    "gpu": "no tests: programs of make test PART=gpu",
    "sdk": "containers of the image",
    "strict_cuda": "torch",
    "train": "torch",
}

# Files, tests, and cases of tests (`*` stands for anything).
FUZZ = "fuzz/test_fuzz.py::test_whatever_comes_is_taken_or_refused_cleanly"
NEED_TORCH: Mapping[str, str] = {
    "client/commands/test_fit.py::test_the_table_the_types_that_are_left_out_and_a_command_that_works": "makes a model",
    "client/commands/test_fit.py::test_json_has_bytes_and_an_end": "makes a model",
    "client/commands/test_fit.py::test_a_model_that_fits_nowhere_is_an_error_after_the_table": "makes a model",
    "client/commands/test_fit.py::test_a_mistake_in_an_option_of_the_job_is_the_job_s_own_error": "makes a model",
    "client/commands/test_fit.py::test_tensor_groups_and_adapters_are_in_the_advice": "makes a model",
    "client/local/test_tensorboard.py": "TensorBoard",
    "client/test_horses_or_humans.py": "Pillow, numpy, and a ViT that is trained",
    "client/test_job_series.py::test_ddp_on_other_hosts_has_the_same_global_batch[server]": "runs ddp",
    "launcher/whole/test_first_job.py": "the script trains with torch",
    "launcher/whole/test_job_environment.py::test_ranks_see_the_requirements_and_the_user_s_environment_stays_as_it_is[torchrun]": "torchrun",
    "launcher/inside/test_rank_nonfinite.py": "torch",
    "launcher/whole/test_non_finite.py": "torch",
    "launcher/whole/test_same_failure.py::test_the_same_failure_twice_ends_with_68_at_once[step]": "makes steps",
    "launcher/whole/test_same_failure.py::test_the_same_hang_twice_ends_with_68": "makes steps",
    "launcher/whole/test_same_failure.py::test_a_failure_that_moves_on_or_is_not_the_program_s_gets_a_third_attempt[moving]": "makes steps",
    "launcher/whole/test_note_scripts.py": "reads checkpoints",
    "launcher/whole/test_hang_calls.py": "gloo",
    "launcher/whole/test_restart.py": "reads checkpoints",
    "repository/test_gpu_synchronisations.py": "imports algorun_train",
    "repository/test_distributions.py": "imports algorun_train",
    "repository/test_gpu_test.py::test_the_packages_are_those_of_this_interpreter": "asks for torch's version",
    "repository/test_gpu_test_runs.py": "the harness asks torch for GPUs",
    "image/test_licences.py::test_licences_and_sizes_are_those_of_the_packages_that_are_installed_here": "the image's packages",
    "launcher/host/test_program_start.py::test_all_engines_end_with_the_same_code_and_text[torchrun]": "torchrun",
    "launcher/inside/test_should_stop.py": "torch.distributed and mpi4py",
    "launcher/inside/test_rank_steps.py::test_the_bundled_ddp_says_what_it_does": "runs ddp",
    "launcher/inside/test_rank_shim.py::test_gloo_is_ended_before_the_interpreter_is": "gloo",
    "launcher/inside/test_rank_calls.py::test_a_process_of_a_group_tells_its_newest_calls_and_ends_as_ever": "gloo",
    "launcher/inside/test_rank_calls.py::test_a_process_on_a_gpu_tells_the_calls_around_the_first_that_has_not_completed": "gloo",
    "launcher/inside/test_rank_calls.py::test_a_process_without_a_group_has_no_thread_that_waits": "imports torch",
    "launcher/inside/test_rank_activities.py::test_torch_and_the_users_modules_stay_what_they_were": "imports torch",
    "launcher/inside/test_rank_activities.py::test_an_exception_is_shown_without_the_launchers_frames": "imports torch",
    "launcher/inside/test_rank_torch_steps.py::test_the_graphs_of_the_real_torch_show_life": "imports torch",
    "launcher/whole/test_token.py::test_the_token_is_in_no_rank_s_daemon_s_or_helper_s_environment[torchrun]": "torchrun",
    "launcher/whole/test_simulate.py::test_every_engine_gives_the_environment_that_torchrun_gives*": "torchrun",
    "launcher/whole/test_hang.py::test_a_sleeping_rank_is_named_with_its_line_on_every_host*": "gloo",
    "launcher/whole/test_left.py::test_the_rank_that_left_is_named_on_every_host[collective-*]": "gloo",
    "launcher/whole/test_cli.py::test_doctor_tells_of_this_machine": "doctor wants torch",
    "launcher/whole/test_cli.py::test_doctor_measures_this_machine_and_leaves_nothing": "measures with torch",
    "launcher/whole/test_usercode.py::test_options_that_contradict_the_plan_are_one_error_for_all": "mpirun",
    "launcher/whole/test_wrong_options.py::test_no_rank_starts_and_the_job_says_it_once[mpi-basics]": "mpirun",
    f"{FUZZ}[checkpoint]": "imports torch",
    f"{FUZZ}[checkpoint-shard]": "imports torch",
    f"{FUZZ}[training-options]": "imports torch",
    f"{FUZZ}[text-lines]": "pyarrow",
    f"{FUZZ}[parquet-rows]": "pyarrow",
}


def place(path: Path) -> str:
    """The path below tests/."""
    return path.relative_to(TESTS).as_posix()


def row_of(item: pytest.Item) -> str | None:
    """The row that names this test."""
    name = item.nodeid.removeprefix("tests/")
    file, test = name.partition("::")[0], name.partition("[")[0]
    return next((row for row in NEED_TORCH if row in (file, test) or like(name, row)), None)


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("torch") is not None:
        raise pytest.UsageError("torch is installed here: a test that needs it would pass; fix: make test PART=light")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that cannot even be imported without torch are not looked at."""
    if not collection_path.is_relative_to(TESTS) or collection_path == TESTS:
        return None
    name = place(collection_path)
    return True if name.partition("/")[0] in LEFT_OUT or name in NEED_TORCH else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs torch."""
    rows = [row_of(item) for item in items]
    config.hook.pytest_deselected(items=[item for item, row in zip(items, rows, strict=True) if row])
    items[:] = [item for item, row in zip(items, rows, strict=True) if not row]
