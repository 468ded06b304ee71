"""A server that boto3 takes for SageMaker and CloudWatch Logs; jobs really run, on simulated hosts of this machine.

```
python -m tests.sagemaker_server --root DIR [--port 0]
```

Its first line is its own URL: of SageMaker (AWS_ENDPOINT_URL_SAGEMAKER), Logs (AWS_ENDPOINT_URL_CLOUDWATCH_LOGS: boto3 takes
the name from the service's id) and ECR (AWS_ENDPOINT_URL_ECR). Its second line is the URL of moto, which stands for S3, STS,
IAM and CloudWatch (AWS_ENDPOINT_URL). It ends with SIGTERM; jobs that run go on.

It is HTTP around `algorun_client.local`, so the client's local target and boto3 see one platform. Unlike the local target it
refuses requests without a role, an image or an instance type. POST /__faults with JSON makes trouble (`faults.Faults`).
"""
