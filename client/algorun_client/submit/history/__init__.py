"""The earlier executions of a task, as its folder in the bucket and SageMaker know them."""
