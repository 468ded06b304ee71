"""How fast the hosts of a job are, and the links between them: what is odd is named, by how much.

`host_work` and `links` measure, `rounds` says who measures with whom, `verdict` compares.
"""
