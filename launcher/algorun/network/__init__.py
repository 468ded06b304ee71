"""The control channel on TCP: the hub's server, a host's link to it, and the connections of both."""
