"""Folders of this machine: which files go up, which must not, and the archive that they become.

`task_files` finds all files of a task, `scan` decides which files of a folder count, `archive` packs code reproducibly,
`inputs` hashes data, `secret_files` knows what must never leave this machine.
"""
