"""The engines, ways of starting ranks: native, torchrun, mpirun. Pure: they only plan their processes."""
