"""What hosts say to each other, and how it is written, sealed and counted. Pure."""
