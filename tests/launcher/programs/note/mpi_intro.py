"""The basics of MPI as notes teach them: an array from rank 0 to rank 1, one to all, and an average by hand."""

import os

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def point_to_point() -> None:
    if rank == 0:
        comm.Send([np.array([0, 1, 2], dtype=np.intc), MPI.INT], dest=1)
    elif rank == 1:
        data = np.empty(3, dtype=np.intc)
        comm.Recv([data, MPI.INT], source=0)
        print(f"received {data.tolist()}", flush=True)


def broadcast() -> None:
    data = np.arange(10, dtype=np.intc) if rank == 0 else np.empty(10, dtype=np.intc)
    comm.Bcast([data, MPI.INT], root=0)
    print(f"broadcast {data.tolist()}", flush=True)


def gather_average_broadcast() -> None:
    gathered = np.empty([size, 4], dtype=np.intc) if rank == 0 else None
    comm.Gather(np.zeros(4, dtype=np.intc) + rank, gathered, root=0)
    if gathered is not None:
        print(f"gathered {gathered[:, 0].tolist()}", flush=True)
        average = gathered.mean(axis=0)
    else:
        average = np.empty(4, dtype=np.float64)
    comm.Bcast([average, MPI.DOUBLE], root=0)
    print(f"average {average.tolist()} of {size} option {os.environ.get('NOTE_OPTION')}", flush=True)


if __name__ == "__main__":
    point_to_point()
    broadcast()
    gather_average_broadcast()
