"""The table: what users of the SageMaker SDKs do with the image, and what they must get."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from client import Running, Seen, docker

Check = Callable[[Seen], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job by one client."""

    name: str
    client: str
    """v2 or v3"""
    hosts: int = 1
    kind: str = "PyTorch"
    """the SDK's class: PyTorch, Estimator, Processing (v2); ModelTrainer (v3)"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """its arguments; @SOURCE and @S3 are filled in"""
    expects: str
    """the expectation in words, for the table"""
    check: Check
    s3: bool = False
    requirements: bool = False
    during: Callable[[Running], None] | None = None
    quick: bool = False
    limit_s: float = 400.0

    @property
    def id(self) -> str:
        return re.sub(r"[^\w.]+", "-", f"{self.client} {self.name} x{self.hosts}")


# ---- checks ---------------------------------------------------------------------------------------------------------


def succeeded(seen: Seen) -> None:
    why = next(iter(seen.failure.splitlines()), "") or seen.error  # the first line is what the table shows
    assert seen.ok, f"{why}\n{seen.error}\n{seen.failure}\n{seen.log[-3000:]}"
    assert seen.failure == ""


def ranks(world: int, hosts: int = 1, *, model: bool = True) -> Check:
    """All ranks ran once, evenly on the hosts, each in one world that could compute together."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        facts = seen.facts
        ran = [fact["rank"] for fact in facts]
        assert ran == list(range(world)), f"ranks {ran} of the script ran, not all of {world}"
        assert {fact["world_size"] for fact in facts} == {world}, facts
        assert {fact["total"] for fact in facts} == {world * (world + 1) / 2}, facts
        names = sorted(fact["host"] for fact in facts)
        assert len(set(names)) == hosts, facts
        assert all(names.count(name) == world // hosts for name in names), facts
        if model:
            assert json.loads(seen.model["model.json"])["total"] == world * (world + 1) / 2

    return check


def both(*checks: Check) -> Check:
    def check(seen: Seen) -> None:
        for one in checks:
            one(seen)

    return check


def logs(text: str) -> Check:
    """The client's log holds this text."""

    def check(seen: Seen) -> None:
        assert text in seen.log, f"{text!r} is not in the log:\n{seen.log[-3000:]}"

    return check


def argv(*words: str) -> Check:
    """Every process got these arguments."""

    def check(seen: Seen) -> None:
        assert [fact["argv"] for fact in seen.facts] == [list(words)] * len(seen.facts), seen.facts

    return check


def greeted(seen: Seen) -> None:
    """Every rank on every host has the job's own variable, whole."""
    assert [fact["greeting"] for fact in seen.facts] == [GREETING] * len(seen.facts), seen.facts


def fails(kept: int, text: str = "ValueError: bad batch 17") -> Check:
    """The client raises with the script's code, shows why, and keeps what was written before."""

    def check(seen: Seen) -> None:
        assert not seen.ok, f"the job succeeded\n{seen.log[-3000:]}"
        assert seen.code == 1, f"exit {seen.code}, not 1\n{seen.failure}\n{seen.error}"
        assert text in seen.log
        assert text in seen.failure, f"output/failure: {seen.failure!r}"
        assert len(seen.facts) == kept, seen.output.keys()
        assert json.loads(seen.model["model.json"]) == {"step": 3}

    return check


def fails_late(seen: Seen) -> None:
    assert not seen.ok, "the job succeeded although a host failed"
    assert seen.code == 1, f"exit {seen.code}, not 1\n{seen.failure}\n{seen.error}"
    assert "the last evaluation failed" in seen.log
    assert [fact["rank"] for fact in seen.facts] == [0], "what the first host wrote is lost"


def all_work_kept(world: int) -> Check:
    def check(seen: Seen) -> None:
        succeeded(seen)
        assert [fact["rank"] for fact in seen.facts] == list(range(world)), f"lost work: {seen.facts}"
        assert "model.json" in seen.model

    return check


def bundled(world: int) -> Check:
    """The bundled ddp trained on the handwritten digits and left its artifact."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        assert f"ok nnodes={world} world_size={world} loss=" in seen.log, seen.log[-3000:]
        assert "model.pt" in seen.model, seen.model.keys()

    return check


TEXT = """it's a "test" of $HOME, 100%"""
PARSED_V2 = {"text": TEXT, "quoted": '"', "number": "0.1", "dollar": "$(date) `date` \\n"}


def hyperparameters(expected: Mapping[str, str]) -> Check:
    def check(seen: Seen) -> None:
        succeeded(seen)
        (fact,) = seen.facts
        assert fact["parsed"] == expected
        assert fact["hps"]["text"] == fact["variable"] == expected["text"]

    return check


def breaks_in_the_sdk(seen: Seen) -> None:
    """A `'` ends the quotes in the SDK's own sm_training.env: no image can help, and none of the user's code ran."""
    assert not seen.ok
    assert seen.code == 2, seen.error
    assert "sm_training.env" in seen.log
    assert seen.facts == []


def stopped(world: int) -> Check:
    def check(seen: Seen) -> None:
        succeeded(seen)
        facts = seen.facts
        assert [fact["rank"] for fact in facts] == list(range(world)), f"not every rank's handler ran: {facts}"
        assert all(fact["stopped"] for fact in facts)
        assert json.loads(seen.model["model.json"]) == {"stopped": True}

    return check


def processed(hosts: int, launched_by: str, factor: int) -> Check:
    def check(seen: Seen) -> None:
        succeeded(seen)
        results = sorted((json.loads(text) for text in seen.output.values()), key=lambda result: result["host"])
        assert [result["rank"] for result in results] == list(range(hosts)), results
        assert {result["world_size"] for result in results} == {hosts}
        assert {result["lines"] for result in results} == {3 * factor}
        assert {result["launched_by"] for result in results} == {launched_by}, results

    return check


def answered(hosts: int) -> Check:
    def check(seen: Seen) -> None:
        succeeded(seen)
        assert [fact["answer"] for fact in seen.facts] == [42] * hosts, seen.facts

    return check


# ---- what happens meanwhile -----------------------------------------------------------------------------------------


def stop(host: int) -> Callable[[Running], None]:
    """`docker stop` of one host, once all train."""

    def during(job: Running) -> None:
        docker("stop", "--time", "30", job.wait_for(r"rank \d trains")[host], limit_s=60)

    return during


# ---- both SDKs ------------------------------------------------------------------------------------------------------


def _processing(client: str, hosts: int) -> list[Row]:
    common: dict[str, Any] = {"client": client, "hosts": hosts, "kind": "Processing", "s3": True}
    return [
        Row(name="Processing by python3", check=processed(hosts, "nobody", 2), **common,
            expects="the image runs a processing script as it is",
            options={"command": ["python3"], "code": "process.py", "arguments": ["--factor", 2]}),
        Row(name="Processing by algorun run", check=processed(hosts, "algorun", 3), **common,
            expects="one rank per host of /opt/ml/config/resourceconfig.json",
            options={"entrypoint": ["algorun", "run", "/opt/ml/processing/input/code/process.py"], "code": "process.py",
                     "arguments": ["--factor", 3]}),
    ]  # fmt: skip


# ---- SDK v2 ---------------------------------------------------------------------------------------------------------


def v2(name: str, script: str, *, hosts: int, expects: str, check: Check, **more: Any) -> Row:
    """A row of the framework estimator with a script of scripts/."""
    options = {"entry_point": script, "source_dir": "@SOURCE"} | more.pop("options", {})
    return Row(name=name, client="v2", hosts=hosts, expects=expects, check=check, options=options, **more)


def _v2() -> list[Row]:
    rows = []
    epochs = {"hyperparameters": {"epochs": 2}}
    for hosts in (1, 2):
        one_each = f"{hosts} rank(s), one per host"
        rows += [
            v2("plain script", "plain.py", hosts=hosts, expects=f"{one_each}; arguments; artifact",
               check=both(ranks(hosts, hosts), argv("--epochs", "2", "--lr", "0.5")), quick=hosts == 2,
               options={"hyperparameters": {"epochs": 2, "lr": 0.5}}),
            v2("torch_distributed", "ddp.py", hosts=hosts, expects=f"{one_each}, by torchrun",
               check=both(ranks(hosts, hosts), logs("engine torchrun"), argv("--epochs", "2")), quick=hosts == 2,
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
            Row(name="no script", client="v2", kind="Estimator", hosts=hosts, check=bundled(hosts), quick=hosts == 1,
                expects="the bundled ddp trains and leaves model.pt",
                options={"hyperparameters": {"epochs": 1, "warmup-epochs": 0}}),
            v2("script from S3", "plain.py", hosts=hosts, check=ranks(hosts, hosts), s3=True,
               expects="the code comes from sagemaker_submit_directory=s3://..tar.gz"),
            v2("requirements.txt", "needs_package.py", hosts=hosts, check=answered(hosts), requirements=True,
               expects="installed on every host before the start"),
            v2("failing script", "fails.py", hosts=hosts, check=fails(hosts), quick=hosts == 2,
               expects="exit 1, the exception in log and failure, output and model kept"),
            *_processing("v2", hosts),
        ]  # fmt: skip
    rows += [
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
        v2("a host fails late", "uneven.py", hosts=2, check=fails_late, expects="the job fails, what the other wrote is kept",
           options={"hyperparameters": {"fail-late": 1}}),
        *(v2(f"docker stop of host {host + 1}", "stops.py", hosts=2, check=stopped(2), during=stop(host), quick=host == 1,
             expects="the handler of every rank on both hosts runs, the job ends with 0") for host in (0, 1)),
    ]  # fmt: skip
    return rows


# ---- SDK v3 ---------------------------------------------------------------------------------------------------------


def v3(name: str, source: Mapping[str, str], *, hosts: int, expects: str, check: Check, **more: Any) -> Row:
    """A row of ModelTrainer with a SourceCode of scripts/."""
    options = {"source_code": dict(source)} | more.pop("options", {})
    return Row(name=name, client="v3", kind="ModelTrainer", hosts=hosts, expects=expects, check=check, options=options,
               **more)  # fmt: skip


COMMAND = "exec algorun train"
GREETING = 'two words; and "quotes"'


def _v3() -> list[Row]:
    rows = []
    epochs = {"hyperparameters": {"epochs": 2}}
    for hosts in (1, 2):
        rows += [
            v3("basic", {"entry_script": "plain.py"}, hosts=hosts, check=both(ranks(hosts, hosts), argv("--epochs", "2")),
               expects=f"{hosts} process(es), one per host", options=epochs),
            v3("Torchrun", {"entry_script": "ddp.py"}, hosts=hosts, check=ranks(2 * hosts, hosts), quick=hosts == 2,
               expects=f"one world of {2 * hosts}",
               options={"distributed": {"type": "Torchrun", "process_count_per_node": 2}}),
            *(v3(f"MPI {each} per host", {"entry_script": "mpi.py"}, hosts=hosts,
                 check=both(ranks(each * hosts, hosts), greeted), quick=hosts == 2 and each == 1,
                 expects=f"one MPI world of {each * hosts}, the job's variables on every host",
                 options={"distributed": {"type": "MPI", "process_count_per_node": each},
                          "environment": {"JOB_GREETING": GREETING}}) for each in (1, 2)),
            v3("command and SAGEMAKER_PROGRAM", {"command": COMMAND}, hosts=hosts, check=ranks(hosts, hosts),
               expects="our launcher, one rank per host",
               options={"environment": {"SAGEMAKER_PROGRAM": "plain.py"}}),
            v3("command and entry_script", {"command": COMMAND, "entry_script": "plain.py"}, hosts=hosts,
               check=both(ranks(hosts, hosts), argv("--epochs", "2")), quick=hosts == 2,
               expects="our launcher, one rank per host, hyperparameters as arguments",
               options=epochs),
            v3("command and Torchrun", {"command": COMMAND, "entry_script": "ddp.py"}, hosts=hosts,
               check=both(ranks(2 * hosts, hosts), logs("engine torchrun"), argv("--epochs", "2")),
               expects=f"our launcher by torchrun, one world of {2 * hosts}",
               options={"distributed": {"type": "Torchrun", "process_count_per_node": 2}, **epochs}),
            v3("command and MPI", {"command": COMMAND, "entry_script": "mpi.py"}, hosts=hosts,
               check=both(ranks(2 * hosts, hosts), logs("engine mpirun"), argv("--epochs", "2")),
               expects=f"our launcher by mpirun, one MPI world of {2 * hosts}",
               options={"distributed": {"type": "MPI", "process_count_per_node": 2}, **epochs}),
            Row(name="no SourceCode", client="v3", kind="ModelTrainer", hosts=hosts, check=bundled(hosts),
                quick=hosts == 1, expects="the bundled ddp trains and leaves model.pt",
                options={"hyperparameters": {"epochs": 1, "warmup-epochs": 0}}),
            v3("requirements", {"entry_script": "needs_package.py", "requirements": "requirements.txt"}, hosts=hosts,
               check=answered(hosts), requirements=True, expects="installed by the SDK's script with the image's pip"),
            *_processing("v3", hosts),
            v3("failing script, command", {"command": COMMAND, "entry_script": "fails.py"}, hosts=hosts,
               check=fails(hosts), expects="exit 1, the exception in log and failure, output and model kept", options=epochs),
        ]  # fmt: skip
    text = TEXT.replace("'", "")
    values = {"text": text, "quoted": '"', "number": "0.1", "dollar": "$(date) `date`"}
    rows += [
        v3("hyperparameters with quotes", {"entry_script": "hyperparameters.py"}, hosts=1, check=hyperparameters(values),
           expects="each value arrives unchanged", options={"hyperparameters": {**values, "number": 0.10}}),
        v3("hyperparameters with quotes, command", {"command": COMMAND, "entry_script": "hyperparameters.py"}, hosts=1,
           check=hyperparameters(values), expects="each value arrives unchanged",
           options={"hyperparameters": {**values, "number": 0.10}}),
        v3("hyperparameter with '", {"entry_script": "hyperparameters.py"}, hosts=1, check=breaks_in_the_sdk,
           expects="exit 2 in the SDK's own script, before anything of the image runs",
           options={"hyperparameters": {"text": "it's"}}),
        v3("failing script", {"entry_script": "fails.py"}, hosts=1, check=fails_by_driver,
           expects="exit 1, the exception in the log, output and model kept"),
        *(v3(f"hosts end unevenly, command, host {first + 1} first", {"command": COMMAND, "entry_script": "uneven.py"},
             hosts=2, check=all_work_kept(2), expects="no work lost, the job succeeds",
             options={"hyperparameters": {"first": first}}) for first in (0, 1)),
        v3("Torchrun hosts end unevenly", {"entry_script": "uneven.py"}, hosts=2, check=all_work_kept(2),
           expects="no work lost, the job succeeds",
           options={"distributed": {"type": "Torchrun", "process_count_per_node": 1}}),
        v3("a host fails late, command", {"command": COMMAND, "entry_script": "uneven.py"}, hosts=2, check=fails_late,
           expects="the job fails, what the other wrote is kept", options={"hyperparameters": {"fail-late": 1}}),
        *(v3(f"docker stop of host {host + 1}, command", {"command": COMMAND, "entry_script": "stops.py"}, hosts=2,
             check=stopped(2), during=stop(host), options=epochs,
             expects="the handler of every rank on both hosts runs, the job ends with 0") for host in (0, 1)),
    ]  # fmt: skip
    return rows


def fails_by_driver(seen: Seen) -> None:
    """The SDK's driver writes its own traceback into output/failure; the user's exception is in the log only."""
    assert not seen.ok
    assert seen.code == 1, seen.error
    assert "ValueError: bad batch 17" in seen.log
    assert "CalledProcessError" in seen.failure
    assert len(seen.facts) == 1
    assert json.loads(seen.model["model.json"]) == {"step": 3}


ROWS = [*_v2(), *_v3()]
