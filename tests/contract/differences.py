"""What a user's process sees, of two launchers, and every difference that is wanted, with its reason."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.contract.trees import Tree


@dataclass(frozen=True)
class Seen:
    """What a program gets: how it is started, its arguments, its environment, its folder."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]

    def facts(self) -> dict[str, str]:
        """Everything as text, by name; SM_TRAINING_ENV also by its keys, to tell which of them differ."""
        out = dict(self.environ)
        out |= {"(program)": shlex.join(self.program), "(arguments)": repr(self.arguments), "(folder)": self.cwd}
        training = json.loads(out.pop("SM_TRAINING_ENV", "{}"))
        return out | {f"SM_TRAINING_ENV.{key}": json.dumps(value) for key, value in training.items()}


def of_toolkit(noted: Mapping, python: str) -> Seen:
    """The toolkit's command line without what stands before the user's program (mpirun, the interpreter's `--`)."""
    argv, environ = list(noted["argv"]), dict(noted["environ"])
    if argv[0] == "mpirun":
        start = argv.index(python)
        exported = [argv[at + 1] for at in range(start) if argv[at] == "-x"]
        environ |= dict(item.split("=", 1) for item in exported if "=" in item)
        argv = argv[start:]
    if argv[:2] == ["/bin/sh", "-c"]:
        program, *arguments = shlex.split(argv[2])
        return Seen((program,), tuple(arguments), noted["cwd"], environ)
    size = {"--": 3, "-m": 3}.get(argv[1], 2)
    if argv[1:3] == ["-m", "mpi4py"]:
        size = 4
    head = ["python", *(item for item in argv[1:size] if item != "--")]
    return Seen(tuple(head), tuple(argv[size:]), noted["cwd"], environ)


Check = Callable[[Tree, str | None, str | None], bool]


@dataclass(frozen=True)
class Difference:
    """A wanted difference: which facts (a pattern), why, and what must hold of theirs and ours where it occurs."""

    facts: str
    why: str
    holds: Check

    def explains(self, tree: Tree, fact: str, theirs: str | None, ours: str | None) -> bool:
        return re.fullmatch(self.facts, fact) is not None and self.holds(tree, theirs, ours)


def only_ours(tree: Tree, theirs: str | None, ours: str | None) -> bool:
    return theirs is None and ours is not None


def subset_of_path(tree: Tree, theirs: str | None, ours: str | None) -> bool:
    """The code folder first, then the user's own entries in their order, as in the toolkit's longer list."""
    mine, other = (ours or "").split(":"), (theirs or "").split(":")
    own = [item for item in tree.environ.get("PYTHONPATH", "").split(":") if item]
    return mine[0] == other[0] and mine[1:] == own and [item for item in other[1:] if item in own] == own


WANTED = [
    # More than the toolkit gives.
    Difference(
        "SM_(HP|CHANNEL)_.*",
        "a name with '-' also in the spelling with '_': shells cannot read the other, and SDK v3 spells it so",
        lambda tree, theirs, ours: (
            theirs is None and any("-" in name for name in (*tree.hyperparameters, *tree.channels))
        ),
    ),
    Difference(
        "SM_(MASTER_ADDR|MASTER_PORT|HOST_COUNT|CURRENT_HOST_RANK|SOURCE_DIR|ENTRY_SCRIPT|INPUT_DATA_DIR|OUTPUT_FAILURE)",
        "SDK v3's drivers set it, and scripts written for them read it",
        only_ours,
    ),
    Difference("SSM_.*", "simple-sagemaker sets it, and command lines written for it read it", only_ours),
    Difference("ALGORUN_CHECKPOINT_DIR", "the folder that SageMaker keeps has no name in the toolkit", only_ours),
    Difference(
        "(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*",
        "torchrun's contract holds on every engine",
        only_ours,
    ),
    Difference(
        "MASTER_PORT",
        "torchrun's contract holds on every engine: the port is the one that the hosts agreed on",
        lambda tree, theirs, ours: theirs == tree.environ.get("MASTER_PORT") and ours is not None,
    ),
    Difference(
        "JAX_COORDINATOR_ADDRESS|JAX_LOCAL_DEVICE_IDS",
        "JAX finds its coordinator, and each of several ranks its own GPU",
        only_ours,
    ),
    Difference(
        "SMDATAPARALLEL_LOCAL_RANK",
        "smddprun sets it in jobs for smdistributed.dataparallel, and the toolkit finds none here",
        lambda tree, theirs, ours: theirs is None and "sagemaker_distributed_dataparallel_enabled" in tree.hyperparameters,
    ),
    Difference(
        "(NCCL|GLOO|TP)_SOCKET_IFNAME|OMP_NUM_THREADS|GOMP_SPINCOUNT",
        "defaults for the network and the threads of a rank, where the user has set none",
        only_ours,
    ),
    Difference("TORCH_FR_BUFFER_SIZE", "ranks with GPUs record their collective calls, for the verdict on a hang", only_ours),
    Difference("PYTHONUNBUFFERED", "lines leave a rank when they are printed", only_ours),
    # Other values.
    Difference(
        "PYTHONPATH",
        "the code folder before the user's own entries; the toolkit adds all of its own interpreter's sys.path",
        subset_of_path,
    ),
    Difference(
        "SAGEMAKER_JOB_NAME",
        "without the SDK's hyperparameter the platform's TRAINING_JOB_NAME tells; the toolkit leaves it empty",
        lambda tree, theirs, ours: theirs == "" and ours == tree.environ.get("TRAINING_JOB_NAME"),
    ),
    Difference(
        "SAGEMAKER_REGION",
        "the platform says the region in AWS_REGION, which boto3 does not read; the toolkit leaves it empty",
        lambda tree, theirs, ours: theirs == "" and ours == tree.environ.get("AWS_REGION"),
    ),
    Difference(
        r"(SM_TRAINING_ENV\.num_cpus|SM_NUM_CPUS)",
        "CPUs that the container may use, by its cgroup and mask; the toolkit counts the machine's",
        lambda tree, theirs, ours: (theirs, ours) == (str(tree.cpus), str(tree.allowed_cpus)),
    ),
    Difference(
        r"(SM_TRAINING_ENV\.num_neurons|SM_NUM_NEURONS)",
        "the image has no Neuron runtime, and nothing is started to look for one",
        lambda tree, theirs, ours: tree.neurons > 0 and ours == "0",
    ),
    Difference(
        r"(SM_TRAINING_ENV\.network_interface_name|SM_NETWORK_INTERFACE_NAME)",
        "where the file names no interface: the one of the default route; the toolkit says eth0, or nothing",
        lambda tree, theirs, ours: (
            (theirs or "").strip('"') == tree.resources.get("network_interface_name", "eth0") in ("", "eth0")
            and (ours or "").strip('"') == tree.default_interface
        ),
    ),
    Difference(
        r"(SM_TRAINING_ENV\.)?(SM_)?(distribution_instance_groups|DISTRIBUTION_INSTANCE_GROUPS)",
        "\"False\", as SDK v2's plain Estimator writes it, is no: the toolkit takes the word for yes",
        lambda tree, theirs, ours: "False" in tree.hyperparameters.values() and ours == "[]",
    ),
    Difference(
        r"\(refused\)",
        "Linux starts no process with a variable of 128 KiB: the toolkit's job fails, ours leaves SM_HPS and the like out",
        lambda tree, theirs, ours: "Argument list too long" in (theirs or "") and ours is None,
    ),
    Difference(
        r"\(refused\)",
        "a log level that is a word ends the toolkit's job before it starts; here SM_LOG_LEVEL says INFO then",
        lambda tree, theirs, ours: tree.name == "log-level-word" and "TypeError" in (theirs or "") and ours is None,
    ),
    Difference(
        r"\(refused\)",
        "a leading './' is no danger: a program is found by its path, never on PATH",
        lambda tree, theirs, ours: tree.name == "name-as-a-path" and "path segments" in (theirs or "") and ours is None,
    ),
    Difference(
        r"\(refused\)",
        "a name with a space is a name: no shell reads it",
        lambda tree, theirs, ours: " " in (tree.program or "") and "the character(s) ' '" in (theirs or "") and ours is None,
    ),
    Difference(
        r"\(refused\)",
        "a job that names no program runs the bundled ddp",
        lambda tree, theirs, ours: tree.program is None and theirs is not None and ours is None,
    ),
    # MPI.
    Difference(
        r"\(program\)",
        "no `-m mpi4py`: a failing rank ends the job through its supervisor, and mpi4py need not be installed",
        lambda tree, theirs, ours: theirs == "python -m mpi4py train.py" and ours == "python train.py",
    ),
    Difference(
        "LD_PRELOAD",
        "the toolkit's stand-in for gethostname() is not needed: hosts are found by the job's own channel",
        lambda tree, theirs, ours: "gethostname" in (theirs or "") and ours is None,
    ),
    Difference(
        "NCCL_DEBUG|NCCL_MIN_NRINGS",
        "not set unless the user has set it; the toolkit's mpirun overwrites it",
        lambda tree, theirs, ours: ours in (None, *tree.environ.values()) and "sagemaker_mpi_enabled" in tree.hyperparameters,
    ),
    Difference(
        "NCCL_SOCKET_IFNAME",
        "what the user has set stays; the toolkit's mpirun overwrites it",
        lambda tree, theirs, ours: ours == tree.environ.get("NCCL_SOCKET_IFNAME"),
    ),
    Difference(
        "FI_PROVIDER|NCCL_PROTO|FI_EFA_USE_DEVICE_RDMA",
        "no list of instance types decides about EFA, and what the user has set stays",
        lambda tree, theirs, ours: ours is None and "p4d" in json.dumps(tree.resources),
    ),
    # The program.
    Difference(
        r"\(program\)",
        "a package (setup.py) is not installed yet; its program runs as a script, with the code folder on the module path",
        lambda tree, theirs, ours: "setup.py" in tree.files and (theirs, ours) == ("python -m train", "python train.py"),
    ),
]  # fmt: skip
