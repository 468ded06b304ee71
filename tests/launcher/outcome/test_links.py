"""Links among what a job leaves are said, with what becomes of them."""

from __future__ import annotations

from algorun.job.paths import Paths
from algorun.outcome import links


def test_links_that_do_not_arrive_are_named(tmp_path):
    paths = Paths(tmp_path / "ml")
    for folder in (paths.model, paths.output_data, paths.checkpoints):
        (folder / "step-7").mkdir(parents=True)
        (folder / "step-7" / "w").write_text("7")
    assert list(links.notes(paths)) == []
    (paths.model / "latest").symlink_to("step-7")
    (paths.model / "step-7" / "best").symlink_to(paths.checkpoints / "step-7" / "w")
    (paths.output_data / "latest").symlink_to(paths.output_data / "step-7")
    (paths.checkpoints / "latest").symlink_to("step-7")
    for number in range(5):
        (paths.output_data / f"gone-{number}").symlink_to("nothing")
    model_out, model_in, output, checkpoints = links.notes(paths)
    assert model_out.startswith(f"model: step-7/best -> {paths.checkpoints}/step-7/w: what lies outside of the folder")
    assert model_in.startswith("model: latest -> step-7: a link in model.tar.gz, too")
    assert output.startswith(
        "output/data: gone-0 -> nothing, gone-1 -> nothing, gone-2 -> nothing and 2 more: what lies"
    )
    assert checkpoints.startswith("checkpoints: latest -> step-7: S3 has no links")


def test_a_folder_that_is_not_there_has_no_links(tmp_path):
    assert list(links.notes(Paths(tmp_path))) == []
