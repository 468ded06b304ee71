"""The request: what was asked, looked up and read from this machine becomes the arguments of one call, byte for byte."""
