from mpi4py import MPI

world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
print(
    f"rank {world.rank} of {world.size}, {node.rank} of {node.size} here: {MPI.Get_library_version().split(',')[0]}",
    flush=True,
)
world.Barrier()
assert world.allreduce(world.rank) == sum(range(world.size))
