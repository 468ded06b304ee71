"""A row of the table of jobs, and the checks that rows share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdk_client import Running, Seen
from sdk_docker import docker

Check = Callable[[Seen], None]
GREETING = 'two words; and "quotes"'


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job by one client."""

    name: str
    client: str
    """v2 or v3"""
    hosts: int = 1
    kind: str = "PyTorch"
    """the SDK's class: PyTorch, TensorFlow, Estimator, Processing (v2); ModelTrainer (v3)"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """its arguments; @SOURCE and @S3 are filled in"""
    expects: str
    """the expectation in words, for the table"""
    check: Check
    s3: bool = False
    requirements: Callable[[Path], None] | None = None
    """writes a requirements.txt into the job's code folder"""
    channels: Callable[[Path], list[str]] | None = None
    """writes folders into the job's folder `data` and returns their names, which are the channels"""
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


def language_model(world: int) -> Check:
    """The bundled ddp trained the channel's language model, sharded where there are several ranks, and left a folder of its kind."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        sharded = f"sharded: over {world} ranks" in seen.log
        assert sharded == (world > 1), seen.log[-3000:]  # one rank has nobody to share with
        assert f"ok nnodes={world} world_size={world} loss=" in seen.log, seen.log[-3000:]
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= seen.model.keys(), seen.model.keys()
        assert json.loads(seen.model["config.json"])["architectures"] == ["LlamaForCausalLM"]

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


def tasks_of_ray(hosts: int) -> Check:
    """One driver, whose tasks ran on all hosts."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        (fact,) = seen.facts
        assert len(set(fact["ran_on"])) == hosts, fact
        assert "engine ray" in seen.log, seen.log[-3000:]
        assert json.loads(seen.model["model.json"]) == {"nodes": hosts}

    return check


def workers_of_tensorflow(hosts: int) -> Check:
    """TF_CONFIG of each rank names the same workers, one on each host, and the rank's own index."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        configs = [fact["tf_config"] for fact in seen.facts]
        assert [config["task"]["index"] for config in configs] == list(range(hosts)), configs
        assert [config["task"]["type"] for config in configs] == ["worker"] * hosts, configs
        (workers,) = {tuple(config["cluster"]["worker"]) for config in configs}
        assert [worker.rpartition(":")[0] for worker in workers] == [fact["host"] for fact in seen.facts], configs

    return check


def partitioned(steps: int) -> Check:
    """The announced script trained on two ranks, each of which has variables of its own."""

    def check(seen: Seen) -> None:
        succeeded(seen)
        losses = [float(each) for each in re.findall(r"loss (\d\S+)$", seen.log, re.MULTILINE)]
        assert len(losses) == steps, seen.log[-3000:]
        assert losses[-1] < losses[0] / 2, losses
        has = dict(re.findall(r"rank (\d) of 2 has (.*)$", seen.log, re.MULTILINE))
        names = [name for rank in ("0", "1") for name in has[rank].strip().split(", ")]
        assert len(names) == len(set(names)) == 6, has
        assert json.loads(seen.output["data/partition.json"])["job"]["ranks"] == 2, seen.output.keys()

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


def processing(client: str, hosts: int) -> list[Row]:
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
