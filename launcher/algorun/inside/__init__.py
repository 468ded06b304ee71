"""Programs that run inside or around a rank: exception report, step counter, common stop, remote shell of mpirun."""
