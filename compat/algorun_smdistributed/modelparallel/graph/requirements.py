"""What this package needs of TensorFlow: checked once, when a script imports it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

LEGACY = "TF_USE_LEGACY_KERAS"
INSTALL = "add tensorflow==2.21.0 and tf_keras==2.21.0 to requirements.txt"
NAME = "smdistributed.modelparallel.tensorflow"
THREADS = "TF_NUM_INTEROP_THREADS"
# A step in a script's tf.function holds one thread while its pieces wait for another: on one core TensorFlow has a single one.
LEAST_THREADS = 4
# Names that TensorFlow and Keras do not document, and that this package cannot do without. 2.21 has them all.
PRIVATE = {
    "tensorflow.python.framework.func_graph": ("FuncGraph._create_op_internal", "FuncGraph._add_function"),
    "tensorflow.python.eager.wrap_function": ("WrappedFunction", "VariableHolder"),
    "tensorflow.python.eager.record": ("could_possibly_record", "stop_recording"),
    "tensorflow.python.autograph.core.ag_ctx": ("ControlStatusCtx", "Status.UNSPECIFIED"),
    "tensorflow.python.autograph.impl.api": ("tf_convert",),
    "tf_keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2._create_all_weights",),
}


def check() -> None:
    """Raises ImportError, one sentence, where TensorFlow or its legacy Keras cannot be used.

    TensorFlow decides between Keras 2 and 3 while it is imported. If the script has not imported it yet, the decision is
    made here.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(LEGACY, "1")
    if len(os.sched_getaffinity(0)) < LEAST_THREADS:
        os.environ.setdefault(THREADS, str(LEAST_THREADS))  # TensorFlow reads it before its first operation
    try:
        import tensorflow as tf
    except ModuleNotFoundError as missing:
        if missing.name != "tensorflow":
            raise
        raise _refused("TensorFlow is not installed", "TensorFlow with tf_keras of its version", INSTALL) from None
    version = str(tf.__version__)
    try:
        keras = importlib.import_module("tf_keras")
    except ImportError as error:
        raise _refused(
            f"legacy Keras cannot be imported ({error})", f"tf_keras of TensorFlow {version}", INSTALL
        ) from None
    absent = [f"{module}.{name}" for module, names in PRIVATE.items() for name in names if not _has(module, name)]
    absent += [] if _keeps_originals(tf) else ["Operation._original_op"]
    if absent:
        raise _refused(f"TensorFlow {version} has no {absent[0]}", "TensorFlow 2.21", INSTALL)
    # Both ways to a layer, because one is decided by the import of TensorFlow and the other by the first use of tf.keras.
    ways = (tf.keras.Model, getattr(importlib.import_module("tensorflow.keras"), "Model", None))
    if any(way is not keras.Model for way in ways):
        raise _refused(
            f"tf.keras is Keras 3 ({LEGACY}={os.environ.get(LEGACY, '')!r} when TensorFlow was imported)",
            "Keras 2, which tf_keras has",
            f'environment={{"{LEGACY}": "1"}} in the estimator, or import {NAME} before tensorflow',
        )


def _has(module: str, name: str) -> bool:
    try:
        found: object = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _keeps_originals(tf: Any) -> bool:  # the module
    """Whether the gradient of an operation knows that operation."""
    with tf.Graph().as_default():
        start = tf.compat.v1.placeholder(tf.float32, [])
        sine = tf.sin(start)
        (gradient,) = tf.gradients(sine, start)
        return getattr(gradient.op, "_original_op", None) is sine.op


def _refused(what: str, allowed: str, fix: str) -> ImportError:
    return ImportError(f"{NAME}: {what}; allowed: {allowed}; fix: {fix}", name=NAME)
