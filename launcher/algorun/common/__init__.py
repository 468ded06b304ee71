"""What every room of the launcher uses: errors with their exit codes, JSON, the event loop, and the version.

It imports no room, and nothing of the package's root.
"""

__version__ = "0.2.0.dev"

# The highest format of a client's request (ALGORUN_REQUEST_FORMAT) that this launcher reads. The image says it as its
# label org.algorun.request-format. Format 1: algorun_args_file, algorun_extract. Format 2: algorun_per_gpu.
# Format 3: algorun_tuned.
REQUEST_FORMAT = 3

STAGE = (
    ".algorun-unpacking"  # prefix of the temporary folder, inside the target folder, into which archives are unpacked
)
