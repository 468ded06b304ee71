"""Prints what torch sees of this machine, as one line of JSON."""

import importlib.metadata
import json
import os
import platform
import warnings

import torch


def main() -> None:
    seen: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "nccl": "none",
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "names": [],
        "why": "",
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        free, total = torch.cuda.mem_get_info(0)
        seen["names"] = [torch.cuda.get_device_name(number) for number in range(count)]
        seen["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    else:
        free, total = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
        # torch warns of what the driver said; without a warning the driver itself is asked.
        seen["why"] = " ".join(str(said[0].message).split()) if said else _driver_s_word()
    print(json.dumps(seen | {"free_bytes": free, "memory_bytes": total}))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _driver_s_word() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}"


if __name__ == "__main__":
    main()
