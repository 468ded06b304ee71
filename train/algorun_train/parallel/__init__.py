"""A library that trains one model over several ranks: in pipeline stages, with replicas of the pipeline beside each other.

    cut_and_partition   cut the model, profile its segments, choose the stages, keep the result in a file
      cut/              where a model can be cut into segments, without a tracer
      partition/        which segments each stage gets: costs, memory limit, search, partition file
      draw/             schedules, partitions and timelines as text, SVG and trace
    run/                the stages of this rank: training, evaluation, weights, gradients (`Pipeline`)
    schedules/          names, rules and orders of pipeline schedules, and their simulation. Pure

It knows no option of a training job, no folder and no name of AWS: callers fill the small options of `options`.
Of `ranks` below it, it uses the joined ranks, the time-outs of collectives and copies between host and device.
Messages name an option as `algorun.pipeline` and the command line spell it.
"""
