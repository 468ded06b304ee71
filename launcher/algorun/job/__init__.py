"""What was asked for: reads SageMaker's files, hyperparameters, environment and command line into one JobConfig."""
