"""What is here: GPUs, drivers, networks, folders, Open MPI; and whether it will do for the job."""
