"""Builds the exact request from the job file and the flags. Pure: it opens no file and calls nothing.

`model` has the types; whoever sends, follows or fetches uses them.
"""
