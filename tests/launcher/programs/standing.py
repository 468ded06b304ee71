"""`standing.py KIND PHASE`: the last rank sleeps in a phase of a program that prints nothing; the others wait for it.

KIND is what exchanges: plain sockets, torch, mpi4py, jax or tensorflow. PHASE: import, data, compile, collective, end.
"""

import importlib
import os
import socket
import sys
import time

KIND, PHASE = sys.argv[1:]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def stuck():
    time.sleep(1000)


def reach(phase):
    if phase == PHASE and RANK == SIZE - 1:
        stuck()


class Plain:
    """Rank 0 hears every other rank, and answers all."""

    def __init__(self):
        if RANK:
            self.peers = [self.connected()]
        else:
            server = socket.create_server(("127.0.0.1", 0))
            with open("port.new", "w") as file:
                file.write(str(server.getsockname()[1]))
            os.rename("port.new", "port")
            self.peers = [server.accept()[0] for _ in range(SIZE - 1)]

    def connected(self):
        while not os.path.exists("port"):
            time.sleep(0.1)
        with open("port") as file:
            return socket.create_connection(("127.0.0.1", int(file.read())))

    def exchange(self):
        if RANK:
            self.peers[0].sendall(b"x")
        for peer in self.peers:
            assert peer.recv(1) == b"x"
        if not RANK:
            for peer in self.peers:
                peer.sendall(b"x")


class Torch:
    def __init__(self):
        self.dist = importlib.import_module("torch.distributed")
        self.dist.init_process_group("gloo")

    def exchange(self):
        self.dist.barrier()


class Mpi4py:
    def __init__(self):
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD

    def exchange(self):
        self.world.Barrier()


class Jax:
    def __init__(self):
        jax = importlib.import_module("jax")
        jax.distributed.initialize(num_processes=SIZE, process_id=RANK)
        self.utils = importlib.import_module("jax.experimental.multihost_utils")
        jax.devices()

    def exchange(self):
        self.utils.sync_global_devices("step")


class Tensorflow:
    def __init__(self):
        tf = importlib.import_module("tensorflow")
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def summed():
            return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

        self.step = tf.function(lambda: strategy.run(summed))

    def exchange(self):
        self.step()


reach("import")
job = {"plain": Plain, "torch": Torch, "mpi4py": Mpi4py, "jax": Jax, "tensorflow": Tensorflow}[KIND]()
reach("data")
job.exchange()
reach("compile")
for _ in range(3):
    reach("collective")
    job.exchange()
reach("end")
job.exchange()
print("went through", flush=True)
