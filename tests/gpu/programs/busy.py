"""Holds BYTES of the device and multiplies matrices on it for SECONDS, so that the figures of the host have something to show."""

import sys
import time

import torch

SIDE = 2048


def main(seconds: float, count: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held = torch.zeros(count, dtype=torch.uint8, device=device)
    matrix = torch.eye(SIDE if device.type == "cuda" else 64, device=device)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            matrix = matrix @ matrix
        print_ready = matrix[0, 0].item()  # waits: the queue must not outlast the seconds
    print(f"multiplied on {device.type}, {print_ready:g}, holding {held.numel()} bytes", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
