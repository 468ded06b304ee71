"""Reads row 11 of 10. A GPU finds it later than Python does: as an assertion on the device."""

import os

import torch


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    table = torch.zeros(10, 4, device=device)
    rows = table[torch.tensor([3, 11], device=device)]
    print("rows", rows.sum().item(), flush=True)


if __name__ == "__main__":
    main()
