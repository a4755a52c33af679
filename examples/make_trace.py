"""Makes the small recorded workload of this folder: an Azure-style trace with invented values.

    python examples/make_trace.py > examples/trace_synthetic.csv

Ninety seconds of chat-like traffic whose rate swings between 2 and 5 requests/s.
"""

import math
import random
from datetime import datetime, timedelta

rng = random.Random(2)
print("TIMESTAMP,ContextTokens,GeneratedTokens")
now_s = 0.0
while (now_s := now_s + rng.expovariate(3.5 + 1.5 * math.sin(now_s / 15))) < 90:
    stamp = datetime(2026, 1, 5, 9, 0) + timedelta(seconds=now_s)
    prompt, answer = rng.lognormvariate(6.2, 0.9), rng.lognormvariate(5.0, 0.7)
    print(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{max(1, round(prompt))},{max(1, round(answer))}")
