"""The options of the bundled jobs: command line, TOML file and AWS's names, read into frozen dataclasses."""
