"""A library that trains one model over several ranks: in pipeline stages, with replicas of the pipeline beside each other.

    planning/     all ranks together: cut the model, profile its segments, choose the stages, keep them in a file
    run/          the stages of this rank: training, evaluation, weights, gradients (`Pipeline`)
    draw/         schedules, partitions and timelines as text, SVG and trace
    cut/          where a model can be cut into segments, without a tracer
    partition/    which segments each stage gets: costs, memory limit, search, partition file
    model/        the words for a model: segments, stages, tensors in arguments, precision, recomputation
    layout/       which rank is where (`Grid`), and the sizes of a batch (`Layout`). Pure
    schedules/    names, rules and orders of pipeline schedules, and their simulation. Pure

README.md beside this file introduces the objects.
It knows no option of a training job, no folder and no name of AWS: callers fill the small options of `planning` and `run`.
Of `ranks` below it, it uses the joined ranks, what carries objects between them, random generators, the time-outs of
collectives, and copies between host and device.
Messages name an option as `algorun.pipeline` and the command line spell it.
"""
