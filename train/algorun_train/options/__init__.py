"""The options of the bundled jobs, read into frozen dataclasses from a command line, a TOML file and AWS's names."""
