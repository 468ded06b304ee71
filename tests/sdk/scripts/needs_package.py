"""Imports what only its requirements.txt brings."""

import json
import os

import facts
import sdk_row_package

hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
facts.write(rank, answer=sdk_row_package.ANSWER)
