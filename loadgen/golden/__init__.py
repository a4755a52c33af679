"""The known server: it streams on an exact schedule and logs its own writes, so that a client can be judged.

`server.py` is the process, `answers.py` the bytes it sends, `pace.py` when, `log.py` what it writes down;
`process.py` starts it and reads its log. It measures clients, never models, and shares no code with the
transport that it judges.
"""
