"""What `algorun -h` says about the commands."""

LAUNCHER = ("train", "run", "plan", "simulate", "doctor", "shell", "metric-definitions", "completion")
CLIENT = ("submit", "ls", "status", "logs", "stop", "fetch", "results", "state", "role")  # commands of algorun_client
REPORT = "report"  # the command of algorun_report
TEXT = """\
In the container:
  train               Run the job that the files in /opt/ml describe. SageMaker calls this command.
  run                 Run a program on all hosts of this job.
  plan                Print what would run on every host, without starting it.

At home:
  simulate            Run a program on several simulated hosts of this machine, without Docker.
  doctor              Check this machine, or with --aws an account; show what would make a job fail.
  shell               Open a shell on a host that is held after a failure.
  metric-definitions  Print metric_definitions for a SageMaker estimator, as JSON.
  completion          Print what bash, zsh or fish needs to complete these commands.
  report              Draw a job as one HTML page.

To SageMaker and back:
  submit              Send a program to SageMaker, or run it here as SageMaker would, and follow it.
  ls                  List jobs, the newest first.
  status              Show where a job is, or how it ended.
  logs                Print the lines of all hosts of a job; -f: to its end.
  stop                Ask a job to end early.
  fetch               Bring home a job's model, outputs, state and logs.
  results             Show the jobs of a sweep or a tuning, the best one first.
  state               List or remove the checkpoints that a task keeps for its next job.
  role                Print a narrow policy for the job's role, or for yourself.

algorun COMMAND -h shows the options of a command.
"""
