"""What this host offers: GPUs, drivers, networks, folders, Open MPI; and whether that suffices for the job."""
