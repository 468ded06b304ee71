"""`ddp`, whose artifact takes longer to write than a collective may take. The options are those of ddp."""

import datetime
import sys
import time

from torch.distributed import distributed_c10d

from algorun.inside.stop_flag import StopFlag
from algorun_train.jobs import ddp, ddp_job, skeleton

COLLECTIVES = datetime.timedelta(seconds=3)
WRITES_S = 6

written, state = skeleton.model_file.write_model, ddp_job.DdpJob.model_state


def slowly(*args):
    time.sleep(WRITES_S)
    return written(*args)


def impatient(self):
    """The last collective work of all ranks before the artifact."""
    found = state(self)
    distributed_c10d._set_pg_timeout(COLLECTIVES)
    return found


skeleton.model_file.write_model, ddp_job.DdpJob.model_state = slowly, impatient
sys.exit(ddp.main(sys.argv[1:], StopFlag()))
