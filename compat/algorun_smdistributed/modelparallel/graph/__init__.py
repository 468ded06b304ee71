"""The machinery of smdistributed.modelparallel.tensorflow: a traced step of a Keras model, cut into the pieces of its stages."""
