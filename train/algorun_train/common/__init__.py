"""What every room of training uses: errors that a user can repair, atomic writes, and what happens once.

It imports no other room.
"""
