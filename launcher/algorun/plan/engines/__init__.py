"""Ways of starting ranks: native, torchrun, mpirun. Pure."""
