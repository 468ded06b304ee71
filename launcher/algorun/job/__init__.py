"""What was asked: the platform's files, hyperparameters, environment and command line, read into one JobConfig."""
