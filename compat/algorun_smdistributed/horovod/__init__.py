"""The name horovod, where Horovod is not installed and TensorFlow is: `horovod.tensorflow` alone."""
