"""AWS's names for a pipeline: what is mapped, what is accepted, and what is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameter_names import (
    FLAGS_WITHOUT_EFFECT,
    NUMBERS_WITHOUT_EFFECT,
    ONLY_DEFAULT,
    TRANSLATED,
)
from algorun_train.options.mp_parameters import MpParameters, apply, merged, parse
from algorun_train.options.mp_sharding import Sharding

DEFAULTS = {"pp": 1, "microbatches": 1, "schedule": "1f1b", "optimize": "memory", "placement": "cluster"}


def pairs(given):
    """What SageMaker's toolkit writes for an object."""
    return ",".join(f"{key}={value}" for key, value in given.items())


MAPPED = [
    ({}, {}, {}),
    ({"partitions": 4}, {"pp": 4}, {}),
    ({"pipeline_parallel_degree": 4}, {"pp": 4}, {}),
    ({"pipeline_parallel_degree": 4, "partitions": 4}, {"pp": 4}, {}),
    ({"partitions": 2, "microbatches": 8}, {"pp": 2, "microbatches": 8}, {}),
    ({"partitions": "2", "microbatches": "8"}, {"pp": 2, "microbatches": 8}, {}),
    ({"pipeline": "interleaved"}, {"schedule": "1f1b"}, {}),
    ({"pipeline": "simple"}, {"schedule": "gpipe"}, {}),
    ({"optimize": "speed"}, {"optimize": "speed"}, {}),
    ({"optimize": "memory", "memory_weight": 0.2}, {"optimize": "speed"}, {}),
    ({"memory_weight": "0.8"}, {"optimize": "memory"}, {}),
    ({"memory_weight": 0}, {"optimize": "speed"}, {}),
    ({"memory_weight": 1.0, "optimize": "speed"}, {"optimize": "memory"}, {}),
    ({"memory_weight": None, "optimize": "speed"}, {"optimize": "speed"}, {}),
    ({"placement_strategy": "cluster"}, {"placement": "cluster"}, {}),
    ({"placement_strategy": "spread"}, {"placement": "spread"}, {}),
    ({"placement_strategy": "DPT"}, {"placement": "cluster"}, {}),
    ({"placement_strategy": "DTP"}, {"placement": "cluster"}, {}),
    ({"placement_strategy": "TPD"}, {"placement": "spread"}, {}),
    ({"bf16": True}, {"precision": "bf16"}, {}),
    ({"bf16": False}, {}, {}),
    ({"ddp": True}, {}, {"ddp": True}),
    ({"ddp": "True"}, {}, {"ddp": True}),
    ({"partitions": 2, "auto_partition": False, "default_partition": 1}, {"pp": 2}, {"auto_partition": False, "default_partition": 1}),
    ({"auto_partition": True, "default_partition": 0}, {}, {"default_partition": 0}),
    ({"active_microbatches": 3}, {}, {"active_microbatches": 3}),
    ({"active_microbatches": None, "microbatches": None}, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize("form", [json.dumps, pairs], ids=["json", "pairs"])
@pytest.mark.parametrize(("given", "options", "others"), MAPPED, ids=[pairs(row[0]) or "empty" for row in MAPPED])
def test_what_has_an_equal_here_is_mapped(given, options, others, form):
    assert parse(form(given)) == MpParameters(DEFAULTS | options, **({"ddp": False} | others))


@pytest.mark.parametrize("form", [json.dumps, pairs], ids=["json", "pairs"])
def test_what_is_the_default_there_and_here_is_accepted(form):
    given = {key: neutral for key, (neutral, _) in ONLY_DEFAULT.items()}
    assert parse(form(given)) == MpParameters(DEFAULTS, ddp=False)
    assert parse(form({key: str(value) for key, value in given.items()})) == MpParameters(DEFAULTS, ddp=False)


@pytest.mark.parametrize("form", [json.dumps, pairs], ids=["json", "pairs"])
def test_what_has_no_effect_here_is_accepted_with_any_value_of_its_kind(form):
    flags = [dict.fromkeys(FLAGS_WITHOUT_EFFECT, flag) for flag in (True, False, "true")]
    numbers = [dict.fromkeys(NUMBERS_WITHOUT_EFFECT, number) for number in (4, 5e8, 0.5, "1e6")]
    for wishes in (*flags, *numbers):
        assert parse(form(wishes)) == MpParameters(DEFAULTS, ddp=False)


@pytest.mark.parametrize("form", [json.dumps, pairs], ids=["json", "pairs"])
@pytest.mark.parametrize(
    ("key", "neutral", "fix"), [(key, *row) for key, row in ONLY_DEFAULT.items()], ids=ONLY_DEFAULT
)
def test_what_cannot_be_had_is_refused_by_name(key, neutral, fix, form):
    other = not neutral if isinstance(neutral, bool) else 2 if isinstance(neutral, int) else "another"
    with pytest.raises(UserError) as caught:
        parse(form({key: other}))
    assert str(caught.value) == (
        f"mp_parameters: {key} = {json.dumps(other)}; allowed: {json.dumps(neutral)}; fix: {fix}"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('{"partitions": 2', "mp_parameters: not JSON: .*; fix: a JSON object such as .*"),
        ("{" * 100_000, "mp_parameters: not JSON: .*"),
        ("partitions", "mp_parameters: 'partitions'; allowed: key=value pairs or a JSON object; fix: .*"),
        ("[1]", r"mp_parameters: '\[1\]'; allowed: key=value pairs or a JSON object; fix: .*"),
        ("partitions=" + "[" * 100_000, "mp_parameters: partitions = .*"),
        ('{"partitions": "%s"}' % ("9" * 5000), "mp_parameters: partitions = .*"),
        ('{"partitons": 2}', 'mp_parameters: partitons = 2; allowed: active_microbatches, auto_partition, .*; fix: leave it out: it has no meaning here'),
        ('{"partitions": 0}', "mp_parameters: partitions = 0; allowed: a whole number of at least 1; fix: give one"),
        ('{"partitions": 2.0}', "mp_parameters: partitions = 2.0; allowed: a whole number of at least 1; fix: give one"),
        ('{"partitions": true}', "mp_parameters: partitions = true; allowed: a whole number of at least 1; .*"),
        ('{"partitions": [2]}', r"mp_parameters: partitions = \[2\]; allowed: .*"),
        ('{"partitions": 2, "pipeline_parallel_degree": 4}', "mp_parameters: partitions = 2; allowed: 4; fix: give one of the two"),
        ('{"microbatches": -1}', "mp_parameters: microbatches = -1; allowed: a whole number of at least 1; fix: .*"),
        ('{"pipeline": "gpipe"}', 'mp_parameters: pipeline = "gpipe"; allowed: interleaved, simple; fix: choose one of them'),
        ('{"pipeline": {}}', "mp_parameters: pipeline = {}; allowed: interleaved, simple; fix: .*"),
        ('{"optimize": "both"}', 'mp_parameters: optimize = "both"; allowed: speed, memory; fix: choose one of them'),
        ('{"placement_strategy": "DPX"}', 'mp_parameters: placement_strategy = "DPX"; allowed: cluster, spread, or an order of the letters D, P, T; fix: use cluster'),
        ('{"placement_strategy": 1}', "mp_parameters: placement_strategy = 1; .*"),
        ('{"ddp": "maybe"}', 'mp_parameters: ddp = "maybe"; allowed: true or false; fix: give one of them'),
        ('{"memory_weight": 1.5}', "mp_parameters: memory_weight = 1.5; allowed: a number from 0 to 1; fix: give one"),
        ('{"memory_weight": true}', "mp_parameters: memory_weight = true; allowed: a number from 0 to 1; fix: give one"),
        ('{"memory_weight": NaN}', "mp_parameters: memory_weight = NaN; allowed: a number from 0 to 1; fix: give one"),
        ('{"prescaled_batch": 3}', "mp_parameters: prescaled_batch = 3; allowed: true or false; fix: give one of them"),
        ('{"sdp_reduce_bucket_size": "many"}', 'mp_parameters: sdp_reduce_bucket_size = "many"; allowed: a number of at least 0; fix: give one'),
        ('{"sdp_max_live_parameters": -%s}' % ("9" * 400), "mp_parameters: sdp_max_live_parameters = -9+; allowed: a number of at least 0; fix: give one"),
        ('{"sdp_max_live_params": 1}', 'mp_parameters: sdp_max_live_params = 1; allowed: .*; fix: leave it out: it has no meaning here'),
        ('{"partitions": 2, "sharded_data_parallel_degree": 2}', 'mp_parameters: sharded_data_parallel_degree = 2; allowed: 1 with more than one partition; fix: "partitions": 1, or pipeline stages alone'),
        ('{"sharded_data_parallel_degree": 0}', "mp_parameters: sharded_data_parallel_degree = 0; allowed: a whole number of at least 1; fix: give one"),
        ('{"partitions": 2, "shard_optimizer_state": true}', 'mp_parameters: shard_optimizer_state = true; allowed: false with more than one partition; fix: "partitions": 1, or leave shard_optimizer_state out'),
        ('{"sharded_data_parallel_degree": 2, "shard_optimizer_state": true}', "mp_parameters: shard_optimizer_state = true; allowed: false with sharded_data_parallel_degree = 2, which shards that state too; fix: leave it out"),
        ('{"fp16": true}', "mp_parameters: fp16 = true; allowed: false without sharded_data_parallel_degree above 1; fix: use bf16, or a sharded_data_parallel_degree above 1"),
        ('{"fp16": true, "bf16": true}', "mp_parameters: fp16 = true; allowed: one of fp16 and bf16; fix: use bf16 alone"),
        ('{"sdp_gradient_clipping": -1}', "mp_parameters: sdp_gradient_clipping = -1; allowed: a number of at least 0; fix: give one"),
        ('{"bf16": 2}', "mp_parameters: bf16 = 2; allowed: true or false; fix: .*"),
        ('{"auto_partition": false}', "mp_parameters: auto_partition = false; allowed: with default_partition only; fix: add default_partition"),
        ('{"partitions": 2, "default_partition": 2}', "mp_parameters: default_partition = 2; allowed: 0 .. 1; fix: name a partition that exists"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(given, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        parse(given)


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ({}, {"partitions": 2, "microbatches": 4}, {"pp": 2, "microbatches": 4, "schedule": "1f1b", "optimize": "memory"}),
        ({"pp": 2}, {"partitions": 2, "microbatches": 2}, {"pp": 2}),
        ({"schedule": "simple"}, {"partitions": 2, "pipeline": "simple"}, {"schedule": "gpipe"}),
        ({}, {"partitions": 4, "microbatches": 2}, {"schedule": "gpipe", "microbatches": 2}),
        ({}, {"partitions": 4, "microbatches": 4}, {"schedule": "1f1b"}),
        ({"precision": "bf16"}, {"bf16": True}, {"precision": "bf16"}),
    ],
)  # fmt: skip
def test_they_become_options(own, given, expected):
    config, _ = apply(PipelineJobOptions(mp_parameters=json.dumps(given), **own))
    assert config.mp_parameters is None
    assert {name: getattr(config, name) for name in expected} == expected


def test_without_them_nothing_changes_and_replicas_are_allowed():
    assert apply(PipelineJobOptions(pp=2)) == (PipelineJobOptions(pp=2), MpParameters())
    assert MpParameters().ddp


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        ({"pp": 4}, {"partitions": 2}, "option --pp: 4 and mp_parameters ask for different things; allowed: one of them; fix: leave out --pp, or say the same in mp_parameters"),
        ({"schedule": "zbv"}, {"partitions": 2}, "option --schedule: zbv and mp_parameters ask for different things; .*"),
        ({"microbatches": 4}, {"microbatches": 2}, "option --microbatches: 4 and mp_parameters .*"),
        ({"placement": "spread"}, {"partitions": 2}, "option --placement: spread and mp_parameters .*"),
        ({}, {"sharded_data_parallel_degree": 2}, "mp_parameters: sharded_data_parallel_degree = 2; allowed: 1 in entrypoint pipeline; fix: a script with smdistributed.modelparallel, or entrypoint ddp with --shard"),
        ({}, {"shard_optimizer_state": True}, "mp_parameters: shard_optimizer_state = true; allowed: false in entrypoint pipeline; fix: .*"),
        ({"batch_size": 30}, {"microbatches": 4}, "option --microbatches: 4 does not divide --batch-size 30; allowed: .*"),
    ],
)  # fmt: skip
def test_two_wishes_that_differ_are_refused(own, given, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        apply(PipelineJobOptions(mp_parameters=json.dumps(given), **own))


@pytest.mark.parametrize("form", [json.dumps, pairs], ids=["json", "pairs"])
@pytest.mark.parametrize(
    ("script", "job", "wanted"),
    [
        ({"partitions": 2, "ddp": True}, {}, {"partitions": 2, "ddp": True}),
        ({}, {"partitions": 2}, {"partitions": 2}),
        ({"microbatches": 4, "optimize": "speed"}, {"microbatches": 2}, {"microbatches": 2, "optimize": "speed"}),
        ({"pipeline_parallel_degree": 1, "ddp": True}, {"partitions": 2}, {"partitions": 2, "ddp": True}),
        ({"fp16": True}, {"fp16": False}, {"fp16": False}),
        ({"memory_weight": 0.2}, {"optimize": "memory"}, {"optimize": "memory"}),
        ({"optimize": "memory"}, {"memory_weight": 0.2}, {"optimize": "memory", "memory_weight": 0.2}),
        ({"auto_partition": False, "default_partition": 1}, {"auto_partition": True}, {"auto_partition": True}),
        (
            {"auto_partition": False, "default_partition": 1},
            {"partitions": 2},
            {"auto_partition": False, "default_partition": 1, "partitions": 2},
        ),
    ],
    ids=["script", "job", "both", "two names", "refused", "its weight", "our weight", "automatic", "manual"],
)
def test_the_jobs_parameters_win_over_those_of_the_script(script, job, wanted, form):
    assert json.loads(merged(script, form(job))) == wanted


def test_a_parameter_of_the_script_that_json_cannot_hold_is_refused_by_name():
    with pytest.raises(UserError, match=r"^mp_parameters: partitions = .*; allowed: a whole number of at least 1; .*"):
        parse(merged({"partitions": object}, ""))


def test_every_parameter_has_its_value_or_awss_default():
    """Defaults: "Parameters for modelparallel" of sagemaker-python-sdk, and AWS's guide to sharded data parallelism."""
    given = {"partitions": 2, "prescaled_batch": "true", "sdp_reduce_bucket_size": "1e6", "bf16": True}
    asked = parse(json.dumps(given))
    wanted = {"partitions": 2, "pipeline_parallel_degree": 2, "microbatches": 1, "prescaled_batch": True, "bf16": True,
              "fp16": False, "tensor_parallel_degree": 1, "ddp": False, "optimize": "memory", "memory_weight": 0.8,
              "placement_strategy": "cluster", "pipeline": "interleaved", "skip_tracing": False, "auto_partition": True,
              "default_partition": 0, "active_microbatches": 4, "deterministic_server": False, "fp16_params": False,
              "activation_loading_horizon": 4, "sdp_hierarchical_allgather": True, "sdp_gradient_clipping": 1.0,
              "sdp_reduce_bucket_size": 10**6, "sdp_param_persistence_threshold": 10**6,
              "sdp_max_live_parameters": 10**9, "checkpoint_attentions": False, "contiguous": True}  # fmt: skip
    assert {key: asked.value(key) for key in wanted} == wanted
    assert all(
        asked.value(key) is not None
        for key in (*ONLY_DEFAULT, *FLAGS_WITHOUT_EFFECT, *NUMBERS_WITHOUT_EFFECT, *TRANSLATED)
    )
    with pytest.raises(KeyError):
        asked.value("partitons")


@pytest.mark.parametrize(
    ("given", "optimize", "weight"),
    [
        ({"optimize": "memory", "memory_weight": 0.2}, "memory", 0.2),
        ({"optimize": "speed"}, "speed", 0.2),
        ({"memory_weight": "0.3"}, "memory", 0.3),
    ],
)
def test_optimize_is_what_the_job_gave_whatever_the_weight(given, optimize, weight):
    asked = parse(json.dumps(given))
    assert (asked.value("optimize"), asked.value("memory_weight")) == (optimize, weight)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=2)
)
known = st.sampled_from(
    [
        *ONLY_DEFAULT,
        *FLAGS_WITHOUT_EFFECT,
        *NUMBERS_WITHOUT_EFFECT,
        "memory_weight",
        "partitions",
        "microbatches",
        "pipeline",
        "optimize",
        "placement_strategy",
        "ddp",
    ]
)


@given(st.text(max_size=30) | st.dictionaries(known | st.text(max_size=4), values, max_size=3).map(json.dumps))
def test_any_text_is_read_or_refused(text):
    said = "mp_parameters: ; fix: "
    try:
        parse(text)
    except UserError as error:
        said = str(error)
    assert said.startswith("mp_parameters: ")
    assert "; fix: " in said


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"sharded_data_parallel_degree": 1, "sdp_gradient_clipping": 0.5}, Sharding()),
        ({"sharded_data_parallel_degree": "4"}, Sharding(4, 1.0)),
        ({"sharded_data_parallel_degree": 4, "sdp_gradient_clipping": 0, "bf16": True}, Sharding(4, 0.0, "bf16")),
        ({"sharded_data_parallel_degree": 2, "sdp_gradient_clipping": "0.5", "fp16": "true"}, Sharding(2, 0.5, "fp16")),
        ({"shard_optimizer_state": True, "sdp_gradient_clipping": 0.5}, Sharding(0, 0.0)),
    ],
)
def test_sharding_as_the_parameters_ask_for_it(given, wanted):
    assert parse(json.dumps(given)).sharding == wanted


def test_a_degree_divides_the_ranks():
    assert [Sharding(degree).shards(8) for degree in (1, 2, 8, 0)] == [1, 2, 8, 8]
    message = (
        "mp_parameters: sharded_data_parallel_degree = 3 does not divide the job's 8 ranks; allowed: 1, 2, 4, 8; fix: choose one "
        "of them, or start another number of ranks"
    )
    with pytest.raises(UserError, match=f"^{message}$"):
        Sharding(3).shards(8)
