"""From a laptop to a job and back: submit, follow, stop and fetch, on SageMaker or on this machine.

```
job file + flags -> Request (pure, printable) -> send -> follow -> fetch
```

Rooms, upper ones import lower ones: `commands`; `send`, `follow`, `fetch`; `local` (SageMaker on this machine); `target`
(the calls that the client makes, and where they go); `request`; `files`; `common`. Of the launcher it imports
the words alone (`algorun.common`, `algorun.job`); to start ranks it starts the launcher as a program.
"""
