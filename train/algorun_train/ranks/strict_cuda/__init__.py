"""A device named cuda that computes on the CPU and refuses what a GPU refuses: ALGORUN_CUDA_ON_CPU=strict.

`loader.load()` makes it, before torch is imported: `build` compiles `device.cpp` against torch's headers, `patches`
answers what torch asks of `torch.cuda`, `waits` counts where the host would wait for a GPU. `import_hook.install()` calls
it at the script's own import of torch.
"""
