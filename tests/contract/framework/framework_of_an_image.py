"""What SAGEMAKER_TRAINING_MODULE names in AWS's framework images: they hand the user's program back to the toolkit."""

from __future__ import annotations


def main() -> None:
    from sagemaker_training import entry_point, environment, runner

    env = environment.Environment()
    entry_point.run(
        uri=env.module_dir,
        user_entry_point=env.user_entry_point,
        args=env.to_cmd_args(),
        env_vars=env.to_env_vars(),
        capture_error=True,
        runner_type=runner.ProcessRunnerType,
    )
