"""What ranks of a hang were doing: their stacks and their collective calls. Pure."""
