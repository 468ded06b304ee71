"""Folders of this machine: which files go up, which must not, and the archive that they become.

`scan` decides which files of a folder count, `archive` packs code reproducibly, `inputs` hashes data, `secret_files`
knows what must never leave this machine.
"""
