"""The report of a job: one HTML page that needs no network. Usable on any job's folder, without AWS and without boto3.

`run_report` is the input of the page, `folder` reads it from a job's folder, `page` draws it, `command` is
`algorun report`.
"""
