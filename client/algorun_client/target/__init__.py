"""The calls that the client makes, as protocols, and the two places where they go: AWS, and this machine."""
