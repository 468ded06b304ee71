"""Names of secrets: those that libraries and services document, and those of models and training that only look alike."""

from __future__ import annotations

import dataclasses

import pytest

from algorun.common.secret_names import is_secret, secrets_of, without_secrets

SECRETS = """
AIRTABLE_API_KEY ALGOLIA_API_KEY ANTHROPIC_API_KEY ARM_CLIENT_SECRET AUTH_TOKEN AUTHORIZATION AWS_ACCESS_KEY_ID
AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_DEVOPS_EXT_PAT AZURE_OPENAI_KEY
AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_KEY AZURE_STORAGE_SAS_TOKEN BASIC_AUTH CI_JOB_TOKEN CI_REGISTRY_PASSWORD
CLEARML_API_SECRET_KEY CLOUDFLARE_API_TOKEN COHERE_API_KEY COMET_API_KEY CONDA_TOKEN CONSUL_HTTP_TOKEN DATABRICKS_TOKEN
DD_API_KEY DD_APP_KEY DB_PASS DB_PASSWORD DB_PWD DEEPSEEK_API_KEY DIGITALOCEAN_ACCESS_TOKEN DISCORD_BOT_TOKEN
DJANGO_SECRET_KEY DOCKER_PASSWORD DOPPLER_TOKEN ELASTIC_PASSWORD ENCRYPTION_KEY FERNET_KEY FIREWORKS_API_KEY FLASK_SECRET_KEY
FTP_PASS GCP_SERVICE_ACCOUNT_KEY GEMINI_API_KEY GH_TOKEN GITHUB_PAT GITHUB_TOKEN GITLAB_PRIVATE_TOKEN GOOGLE_API_KEY
GPG_PASSPHRASE GRAFANA_API_KEY GROQ_API_KEY HEROKU_API_KEY HF_TOKEN HMAC_KEY HUGGINGFACEHUB_API_TOKEN
HUGGING_FACE_HUB_TOKEN JWT_SECRET KAGGLE_KEY KEYSTORE_PASSWORD KUBE_TOKEN LANGCHAIN_API_KEY LANGSMITH_API_KEY LDAP_PASSWORD
LICENSE_KEY LIGHTNING_API_KEY MAILGUN_API_KEY MASTER_KEY MINIO_SECRET_KEY MISTRAL_API_KEY MLFLOW_TRACKING_PASSWORD
MLFLOW_TRACKING_TOKEN MODAL_TOKEN_SECRET MONGO_INITDB_ROOT_PASSWORD MYSQL_PWD MYSQL_ROOT_PASSWORD NEPTUNE_API_TOKEN
NGC_API_KEY NODE_AUTH_TOKEN NPM_TOKEN NVIDIA_API_KEY OPENAI_API_KEY OPENAI_APIKEY OPENROUTER_API_KEY ORACLE_PWD PASSPHRASE
PASSWORD PGPASSWORD PIP_PASSWORD PINECONE_API_KEY POSTGRES_PASSWORD PRIVATE_KEY PYPI_TOKEN QDRANT_API_KEY RABBITMQ_DEFAULT_PASS
REDISCLI_AUTH REDIS_PASSWORD REGISTRY_PASSWORD REPLICATE_API_TOKEN RESTIC_PASSWORD RSYNC_PASSWORD RUNPOD_API_KEY SECRET
SECRET_KEY SENDGRID_API_KEY SENTRY_AUTH_TOKEN SERPAPI_API_KEY SESSION_COOKIE SHOPIFY_ACCESS_TOKEN SIGNING_KEY SLACK_BOT_TOKEN
SLACK_WEBHOOK SMTP_PASS SMTP_PASSWORD SNOWFLAKE_PASSWORD SONAR_TOKEN SSHPASS SSH_KEY SSH_PRIVATE_KEY STORAGE_ACCOUNT_KEY
STRIPE_SECRET_KEY TAVILY_API_KEY TELEGRAM_BOT_TOKEN TF_TOKEN TOGETHER_API_KEY TOKEN TRAVIS_TOKEN TWILIO_AUTH_TOKEN
TWINE_PASSWORD VAULT_TOKEN WANDB_API_KEY WANDB_KEY WEAVIATE_API_KEY accessKey access_token apiKey api-key api_key
api_secret auth_token clientSecret client_secret connectionString credentials db-password dbPassword hub_token id_token
license_key password private_key private_token push_to_hub_token refresh_token secretAccessKey secret_key sharedAccessKey
user_pass use_auth_token x-api-key api_tokens HF_TOKEN_2 github_token ghtoken hftoken
""".split()  # noqa: SIM905
OTHERS = """
PATH PWD OLDPWD HOME HOSTNAME PYTHONPATH LD_LIBRARY_PATH TOKENIZERS_PARALLELISM NCCL_DEBUG CUDA_VISIBLE_DEVICES MASTER_ADDR
MASTER_PORT WORLD_SIZE SM_HOSTS SM_CHANNEL_TRAIN AWS_REGION AWS_DEFAULT_REGION AWS_PROFILE AWS_ROLE_ARN AWS_STS_REGIONAL_ENDPOINTS
AWS_WEB_IDENTITY_TOKEN_FILE AWS_SHARED_CREDENTIALS_FILE AWS_CONTAINER_CREDENTIALS_FULL_URI SECRET_ARN SECRET_NAME PASSWORD_FILE
KEY_NAME KEY_PATH SSH_AUTH_SOCK HF_HOME HF_HUB_OFFLINE WANDB_PROJECT WANDB_MODE MLFLOW_TRACKING_URI OMP_NUM_THREADS
key keys key_dim key_size image_key text_key label_key prompt_key sort_key cache_key partition_key primary_key foreign_key
s3_key object_key num_key_value_heads key_padding_mask key_proj public_key ssh_public_key keypoints hotkey keyboard monkey
tokens tokens_per_second max_tokens min_tokens total_tokens num_tokens n_tokens new_tokens train_tokens seen_tokens
pad_token eos_token bos_token unk_token sep_token cls_token mask_token image_token additional_special_tokens extra_special_tokens
pad_token_id image_token_index token_type_ids token_dropout token_embedding max_token_len per_token_loss tokenizer
tokenizer_name tokenizer_path tokenize tokenized next_token_loss token_accuracy mean_token_accuracy token_budget
forward_pass backward_pass pass_rate num_passes two_pass bypass passes compass passage pass_k path_pattern pattern patience
auth use_auth author authors no_auth session session_id access accessor cookiecutter credit certificate seed salt
prefix_length hidden_size secretmode_no privacy private public_only shared
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", SECRETS)
def test_documented_names_of_secrets(name):
    assert is_secret(name)
    assert is_secret(f"SM_HP_{name}")
    assert is_secret(f"--{name}")


@pytest.mark.parametrize("name", [name for name in OTHERS if "secret" not in name])
def test_names_that_only_look_alike(name):
    assert not is_secret(name)


# To import the configs of all models takes a minute.
@pytest.mark.slow
def test_no_option_of_a_model_and_of_training_is_a_secret():
    """All that transformers knows, but for what its Trainer documents as a token of the Hub."""
    transformers = pytest.importorskip("transformers")
    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    names |= set(transformers.GenerationConfig().to_dict())
    names |= set(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    for kind in transformers.CONFIG_MAPPING.values():
        names |= set(getattr(kind, "__dataclass_fields__", ())) | set(kind.attribute_map)
    assert len(names) > 1500
    found = {name for name in names if is_secret(name)}
    assert found - {"hub_token", "push_to_hub_token"} == set()
    assert "hub_token" in found


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--password x --lr 1", "--password *** --lr 1"),
        ("--db-pass=x --max_new_tokens 5", "--db-pass=*** --max_new_tokens 5"),
        ("api_key=x train.py", "api_key=*** train.py"),
        ("--with-token --verbose", "--with-token --verbose"),
        ("--token", "--token"),
        ("--password= --lr 1", "--password=*** --lr 1"),
        ("--password --password", "--password --password"),
        ("--token a --token b", "--token *** --token ***"),
    ],
)
def test_command_lines(words, shown):
    assert " ".join(without_secrets(words.split(" "))) == shown
    assert all(words.split(" ")[at].endswith(value) for at, _, value in secrets_of(words.split(" ")))
