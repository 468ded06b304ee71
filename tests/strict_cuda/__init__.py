"""The bundled jobs on a device named cuda that computes on the CPU and refuses what a GPU refuses; see docs/gpu.md."""
