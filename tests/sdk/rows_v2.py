"""The jobs of the SageMaker SDK v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from row import (
    PARSED_V2,
    TEXT,
    Check,
    Row,
    all_work_kept,
    answered,
    argv,
    both,
    bundled,
    fails,
    fails_late,
    hyperparameters,
    language_model,
    logs,
    partitioned,
    processing,
    ranks,
    stop,
    stopped,
    tasks_of_ray,
    workers_of_tensorflow,
)
from sdk_environment import write_announced, write_package, write_ray, write_tensorflow

from tests.train.model_folders import write_language_model, write_text

TENSORFLOW = {"framework_version": "2.19", "py_version": "py312"}  # the SDK compares the version, image or not


def _announced(processes: int) -> dict[str, Any]:
    """The distribution of AWS's announcement of smdistributed.modelparallel."""
    parameters = {"microbatches": 2, "partitions": 2, "pipeline": "interleaved", "optimize": "memory", "horovod": True}
    return {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": processes},
    }


def llama_and_text(data: Path) -> list[str]:
    """A Hugging Face folder and a text, and the empty file that stands for the bundled `ddp`."""
    write_language_model(data / "model")
    write_text(data / "train")
    (data.parent / "source" / "ddp.py").write_bytes(b"")
    return ["model", "train"]


def v2(name: str, script: str, *, hosts: int, expects: str, check: Check, **more: Any) -> Row:
    """A row of the framework estimator with a script of scripts/."""
    options = {"entry_point": script, "source_dir": "@SOURCE"} | more.pop("options", {})
    return Row(name=name, client="v2", hosts=hosts, expects=expects, check=check, options=options, **more)


def _on(hosts: int) -> list[Row]:
    """The rows that run on one host and on two."""
    rows = []
    epochs = {"hyperparameters": {"epochs": 2}}
    one_each = f"{hosts} rank(s), one per host"
    rows += [
        v2("plain script", "plain.py", hosts=hosts, expects=f"{one_each}; arguments; artifact",
           check=both(ranks(hosts, hosts), argv("--epochs", "2", "--lr", "0.5")), quick=hosts == 2,
           options={"hyperparameters": {"epochs": 2, "lr": 0.5}}),
        v2("torch_distributed", "ddp.py", hosts=hosts, expects=f"{one_each}, by torchrun",
           check=both(ranks(hosts, hosts), logs("engine torchrun"), argv("--epochs", "2")),
           options={"distribution": {"torch_distributed": {"enabled": True}}, **epochs}),
        v2("pytorchddp", "ddp.py", hosts=hosts, expects=one_each, check=ranks(hosts, hosts),
           options={"distribution": {"pytorchddp": {"enabled": True}}}),
        v2("smddp backend", "ddp.py", hosts=hosts, expects=f"{one_each}; `smddp` is an open backend",
           check=ranks(hosts, hosts),
           options={"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
                    "hyperparameters": {"backend": "smddp"}}),
        v2("smddp first interface", "smddp_first.py", hosts=hosts, expects=f"{one_each}; the library's first interface",
           check=ranks(hosts, hosts),
           options={"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}}),
    ]  # fmt: skip
    for processes in (1, 2):
        world = hosts * processes
        rows.append(
            v2(f"mpi {processes} per host", "mpi.py", hosts=hosts, expects=f"one MPI world of {world}",
               check=both(ranks(world, hosts), argv("--epochs", "2")), quick=hosts == processes == 2,
               options={"distribution": {"mpi": {"enabled": True, "processes_per_host": processes}}, **epochs})
        )  # fmt: skip
    rows += [
        Row(name="no script", client="v2", kind="Estimator", hosts=hosts, check=bundled(hosts),
            expects="the bundled ddp trains and leaves model.pt",
            options={"hyperparameters": {"epochs": 1, "warmup-epochs": 0}}),
        v2("ddp with a channel model", "ddp.py", hosts=hosts, channels=llama_and_text, quick=hosts == 2,
           expects="a language model of a folder, sharded, by torchrun; the same kind of folder as artifact",
           check=both(language_model(hosts), logs("engine torchrun")),
           options={"distribution": {"torch_distributed": {"enabled": True}},
                    "hyperparameters": {"shard": "all", "context": 32, "epochs": 1, "warmup-epochs": 0}}),
        v2("script from S3", "plain.py", hosts=hosts, check=ranks(hosts, hosts), s3=True,
           expects="the code comes from sagemaker_submit_directory=s3://..tar.gz"),
        v2("requirements.txt", "needs_package.py", hosts=hosts, check=answered(hosts), requirements=write_package,
           expects="installed on every host before the start"),
        v2("failing script", "fails.py", hosts=hosts, check=fails(hosts), quick=hosts == 2,
           expects="exit 1, the exception in log and failure, output and model kept"),
        *processing("v2", hosts),
    ]  # fmt: skip
    return rows


def _once() -> list[Row]:
    """The rows with a fixed number of hosts."""
    return [
        v2("script from S3 by AWS_ENDPOINT_URL_S3", "plain.py", hosts=1, check=ranks(1), s3=True,
           expects="the endpoint of the environment is honoured",
           options={"environment": {"AWS_ENDPOINT_URL_S3": "@S3"}}),
        v2("hyperparameters with quotes", "hyperparameters.py", hosts=1, check=hyperparameters(PARSED_V2), quick=True,
           expects="each value arrives unchanged",
           options={"hyperparameters": {"text": TEXT, "quoted": '"', "number": 0.10, "dollar": PARSED_V2["dollar"]}}),
        v2("hosts end unevenly, the first one first", "uneven.py", hosts=2, check=all_work_kept(2), quick=True,
           expects="no work lost, the job succeeds"),
        v2("hosts end unevenly, the last one first", "uneven.py", hosts=2, check=all_work_kept(2),
           expects="no work lost, the job succeeds", options={"hyperparameters": {"first": 1}}),
        v2("torchrun hosts end unevenly", "uneven.py", hosts=2, check=all_work_kept(2),
           expects="no work lost, the job succeeds",
           options={"distribution": {"torch_distributed": {"enabled": True}}}),
        v2("multi_worker_mirrored_strategy", "tf_config.py", hosts=2, check=workers_of_tensorflow(2), kind="TensorFlow",
           expects="`TF_CONFIG` of a worker on each host",
           options={"distribution": {"multi_worker_mirrored_strategy": {"enabled": True}},
                    **TENSORFLOW}),
        *(v2(f"smdistributed.modelparallel, TensorFlow, {2 // hosts} per host", "tf2.py", hosts=hosts, check=partitioned(30),
             kind="TensorFlow", requirements=write_announced, limit_s=900,
             expects="AWS's announced script trains on two partitions, TensorFlow from requirements.txt",
             options={"distribution": _announced(2 // hosts), "hyperparameters": {"algorun_args": "30"},
                      "environment": {"TF_USE_LEGACY_KERAS": "1"}, **TENSORFLOW})
          for hosts in (1, 2)),
        v2("smdistributed.dataparallel, TensorFlow", "sdp_tensorflow.py", hosts=2, check=ranks(2, 2), kind="TensorFlow",
           requirements=write_tensorflow, limit_s=900, expects="2 ranks, whose gradients are averaged",
           options={"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}, **TENSORFLOW}),
        v2("Ray by algorun_engine=ray", "ray_tasks.py", hosts=2, check=tasks_of_ray(2), requirements=write_ray,
           expects="Ray from requirements.txt, a driver, tasks on both hosts",
           options={"hyperparameters": {"algorun_engine": "ray"}}),
        v2("a host fails late", "uneven.py", hosts=2, check=fails_late, expects="the job fails, what the other wrote is kept",
           options={"hyperparameters": {"fail-late": 1}}),
        *(v2(f"docker stop of host {host + 1}", "stops.py", hosts=2, check=stopped(2), during=stop(host), quick=host == 1,
             expects="the handler of every rank on both hosts runs, the job ends with 0") for host in (0, 1)),
    ]  # fmt: skip


ROWS = [*_on(1), *_on(2), *_once()]
