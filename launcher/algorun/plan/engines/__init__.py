"""The engines, ways of starting ranks: native, torchrun, mpirun, ray. Pure: they only plan their processes."""
