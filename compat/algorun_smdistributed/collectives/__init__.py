"""What horovod.tensorflow and smdistributed.dataparallel.tensorflow have in common: tensors of TensorFlow, reduced over ranks."""
