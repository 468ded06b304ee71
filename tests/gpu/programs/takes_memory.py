"""Takes BYTES in one piece and trains a little. Attempt 0 ends by an exception, attempt 1 by SIGKILL, attempt 2 well.

An attempt that begins before the memory of the last one is free ends with "out of memory".
"""

import os
import signal
import sys
import time

import torch


def main(count: int) -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    taken = torch.empty(count, dtype=torch.uint8, device=device)
    taken.fill_(attempt + 1)
    weight = torch.ones(8, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    print(f"attempt {attempt} holds {taken.numel()} bytes of value {taken[-1].item()}", flush=True)
    time.sleep(0.5)
    if attempt == 0:
        raise RuntimeError("the first attempt ends here")
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
